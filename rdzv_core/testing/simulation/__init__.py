"""Many nodes under one virtual clock, with faults by seed.

Real sessions talk to a real store in memory; the network between them, the launchers on top of them, the workers
below them and the time are made up. One store operation happens at a time, and everything else may come in between.

* :mod:`~rdzv_core.testing.simulation.plan`: what is to happen: the nodes, the rules, the faults. A value.
* :mod:`~rdzv_core.testing.simulation.world`: plays a plan, and says what broke.
* :mod:`~rdzv_core.testing.simulation.laws`: the invariants.
* :mod:`~rdzv_core.testing.simulation.draw`: plans by seed.
* :mod:`~rdzv_core.testing.simulation.shrink`: the smallest plan that still breaks.
"""

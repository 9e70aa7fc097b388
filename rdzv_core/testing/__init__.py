"""The kit for people who write backends, and for everyone who tests a rendezvous.

* :mod:`rdzv_core.testing.conformance`: the laws of a backend, as a test class to inherit.
* :mod:`rdzv_core.testing.memory`: a store in memory that keeps them all, and can be made to suffer.
* :mod:`rdzv_core.testing.simulate`: many nodes under a virtual clock, with faults by seed.

Import what you need from these modules; this package itself imports nothing, since pytest loads its plugin in
every session.
"""

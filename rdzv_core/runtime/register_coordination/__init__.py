"""Level 2 over a bare register: what makes a three-member backend enough to run torchrun.

Records, tombstones, lease, register and pages all live inside the one value of the level-1 register. Each call that
says something is one compare-and-set of the whole; each wait is a poll. That is slower than what a coordination
service does of itself, and never wrong:

* *Nobody compares clocks.* A record is dead for me when I have watched its beat unchanged, across my own reads and on
  my own clock, for its whole time to live. Once dead for me it stays dead for me, though the beat should move again;
  my next write drops it, and its node learns that it is not known. (:mod:`.watch`)
* *Nobody repeats a write blindly.* Each operation carries a random word that its write leaves behind, so an operation
  that is unsure of its write looks for its word before it decides anew. (:mod:`.value`, :mod:`.backend`)
* *Losers step aside.* Who loses a race waits for a random time that grows with each loss in a row, then reads and at
  once writes. 128 nodes that join at the same moment need between four and five writes each. (:mod:`.backoff`)
"""

from rdzv_core.runtime.register_coordination.backend import RegisterCoordination

__all__ = ["RegisterCoordination"]

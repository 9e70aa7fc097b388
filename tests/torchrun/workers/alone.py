"""A worker that needs neither torch nor its peers: up in milliseconds, and it does not notice a lost one."""

from __future__ import annotations

import time

from progress import Progress, misbehave, parser, prepare


def main() -> None:
    """Step alone until told to end."""
    arguments = parser().parse_args()
    progress = Progress()
    prepare(arguments)
    step = 0
    while True:
        step += 1
        progress.say("step", step=step)
        misbehave(arguments, progress, step)
        if step == arguments.steps or (arguments.until is not None and arguments.until.exists()):
            break
        time.sleep(arguments.pace)
    progress.say("finished", step=step)


if __name__ == "__main__":
    main()

"""The door for torchrun: our handler, dressed as torch's.

Everything here exists because of something that ``torchrun`` was seen to do; ``docs/torchrun.md`` tells it fact by
fact. Nothing outside this package knows the launcher.
"""

"""Hooks: places where a plugin may watch, describe, veto or order, never steer.

A plugin is a distribution with an entry point in the group ``rdzv_core.hooks``; its functions carry
:data:`hookimpl` and the name of a hook of :mod:`rdzv_core.hooks.specs`. See ``docs/hooks.md``.
"""

from rdzv_core.hooks.manager import Hooks
from rdzv_core.hooks.specs import Member, hookimpl

__all__ = ["Hooks", "Member", "hookimpl"]

"""What torchrun's own registry loads: torch imports this while it is itself being imported, so nothing is imported."""


def get_handler():  # type: ignore[no-untyped-def]
    """Answer the creator, as the group ``torchrun.handlers`` asks for."""
    return create_redis_handler


def create_redis_handler(params):  # type: ignore[no-untyped-def]
    """Create torch's kind of handler for ``--rdzv-backend=redis``."""
    from rdzv_core.torchrun.entry import create_handler_for_torchrun

    return create_handler_for_torchrun(params, name="redis")

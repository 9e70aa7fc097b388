"""What torchrun's own registry loads: torch imports this while it is itself being imported, so nothing is imported."""


def get_handler():  # type: ignore[no-untyped-def]
    """Answer the creator, as the group ``torchrun.handlers`` asks for."""
    return create_c10d_handler


def create_c10d_handler(params):  # type: ignore[no-untyped-def]
    """Create torch's kind of handler for ``--rdzv-backend=rdzv-c10d``; torch keeps the name ``c10d`` to itself."""
    from rdzv_core.torchrun.entry import create_handler_for_torchrun

    return create_handler_for_torchrun(params, name="rdzv-c10d", backend="c10d")

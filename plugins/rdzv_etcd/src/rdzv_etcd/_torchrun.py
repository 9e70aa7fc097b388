"""What torchrun's own registry loads: torch imports this while it is itself being imported, so nothing is imported."""


def get_v3_handler():  # type: ignore[no-untyped-def]
    """Answer the creator, as the group ``torchrun.handlers`` asks for."""
    return create_v3_handler


def get_v2_handler():  # type: ignore[no-untyped-def]
    """Answer the creator, as the group ``torchrun.handlers`` asks for."""
    return create_v2_handler


def create_v3_handler(params):  # type: ignore[no-untyped-def]
    """Create torch's kind of handler for ``--rdzv-backend=etcd-v3``."""
    from rdzv_core.torchrun.entry import create_handler_for_torchrun

    return create_handler_for_torchrun(params, name="etcd-v3")


def create_v2_handler(params):  # type: ignore[no-untyped-def]
    """Create torch's kind of handler for ``--rdzv-backend=rdzv-etcd-v2``; torch keeps ``etcd-v2`` for itself."""
    from rdzv_core.torchrun.entry import create_handler_for_torchrun

    return create_handler_for_torchrun(params, name="rdzv-etcd-v2", backend="etcd-v2")

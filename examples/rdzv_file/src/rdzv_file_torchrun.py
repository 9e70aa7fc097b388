"""What torchrun loads. torch does so in the middle of its own import, so nothing may be imported at the top."""


def get_handler():
    return create_file_handler


def create_file_handler(params):
    from rdzv_core.torchrun.entry import create_handler_for_torchrun

    return create_handler_for_torchrun(params, name="rdzv-file", backend="file")

from sglang.srt.server_args import ServerArgs


def _set_envs_and_config(args: ServerArgs) -> None:
    return

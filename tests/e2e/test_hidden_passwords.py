"""Passwords in flags do not appear in process lists."""

import subprocess
from pathlib import Path

import pytest
from harness.broker import environment, foldmq, free_port
from harness.waiting import until


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.parametrize("joined", [False, True])
def test_a_password_that_is_a_flag_leaves_the_process_list(tmp_path: Path, *, joined: bool) -> None:
    flag = ["--nats-password=secret-1"] if joined else ["--nats-password", "secret-1"]
    url = f"nats://127.0.0.1:{free_port()}"
    command = [foldmq(), "serve", "--nats-url", url, "--nats-user", "ann", *flag]
    command += ["--listen", f"127.0.0.1:{free_port()}", "--metrics", "off", "--web", "off"]
    with subprocess.Popen(
        [*command, "--data-dir", str(tmp_path)],
        env=environment(),
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        arguments = Path(f"/proc/{process.pid}/cmdline")
        until(
            lambda: process.poll() is not None or b"secret-1" not in arguments.read_bytes(),
            "arguments without the password",
        )
        ended = process.poll() is not None
        process.terminate()
        assert process.stderr is not None
        said = process.stderr.read()
    assert not ended, said
    assert "secret-1" not in said
    assert "Traceback" not in said

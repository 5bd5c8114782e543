"""A data directory that others can access, as the operator sees it."""

import stat
from collections.abc import Callable

from harness.broker import Broker
from harness.fixtures import Clients


def test_a_directory_that_others_can_access_is_closed_with_a_warning(
    make_broker: Callable[..., Broker],
) -> None:
    own = make_broker("log_format = 'json'\n")
    own.start()
    own.stop()
    own.data_dir.chmod(0o777)
    (own.data_dir / "nats.stderr").chmod(0o644)
    own.start()
    (directory,) = own.told("was open to other users (mode 0777): set to 0700")
    (file,) = own.told("other users could read or write nats.stderr: mode set to 0600")
    assert (directory["level"], file["level"]) == ("warning", "warning")
    assert stat.S_IMODE(own.data_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE((own.data_dir / "nats.stderr").stat().st_mode) == 0o600
    clients = Clients("127.0.0.1", own.port)
    clients.connect().publish("a", b"x", 1)
    clients.close()
    own.restart()
    assert len(own.told("open to other users")) == 1
    own.stop()


def test_a_link_in_the_place_of_a_file_is_one_line(make_broker: Callable[..., Broker]) -> None:
    own = make_broker()
    own.start()
    own.stop()
    config = own.data_dir / "nats.conf"
    config.unlink()
    config.symlink_to("/dev/zero")
    said = own.refused(73)
    assert said == (
        f"data directory {own.data_dir}: file 'nats.conf' is a symbolic link: put the file itself "
        "in its place, or remove it"
    )
    config.unlink()
    own.start()
    own.stop()

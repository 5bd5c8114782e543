"""The names of the logs of a node or cluster with several, and the log of a session."""

from collections.abc import Sequence

from cli.settings.log_settings import LogSettings
from eventstore.datadir import DataDir
from eventstore.display import name
from eventstore.errors import UsageError
from eventstore.partitions import partition_names, partition_of
from protocol.mqtt.shared_filters import SHARE


def log_names(settings: LogSettings) -> list[str]:
    """Return the names of the logs of a cluster, or of the processes of a data directory.

    None are returned if there is one log.
    """
    if settings.cluster is not None:
        several = settings.partitions > 1
        return partition_names(settings.cluster, settings.partitions) if several else []
    datadir = DataDir(settings.data_dir)
    elsewhere = settings.nats_url is not None and "data_dir" not in settings.model_fields_set
    return [] if elsewhere else datadir.log_names()


def log_of_session(names: Sequence[str], session: str, chosen: str | None = None) -> str | None:
    """Return the log of a session, or the one that was chosen for a shared subscription.

    None is returned if there are no several logs, ``names``, or if the session belongs to none of
    them. Raises UsageError if another log was chosen than that of a client.
    """
    shared = session.startswith(SHARE)
    if not names or (session.startswith("$") and not shared):
        return None
    own = names[partition_of(session, len(names))]
    if chosen in names and chosen != own and not shared:
        raise UsageError(
            f"the session {name(session)} belongs to the log {own}, not to {chosen}: give --node "
            f"{own}, or leave it out"
        )
    return chosen or own

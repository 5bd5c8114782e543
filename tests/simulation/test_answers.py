"""Random clients with incidents: every answer to an operator is true at every moment.

Each incident is named while it lasts and with its subject, none is invented, none is reported as
present after it ended. A preview of a message is compared with what then happens to one, ``why``
with what each client did with each message. ``FOLDMQ_SEEDS=300`` takes more runs.
"""

import functools
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from actors.inspection import problems, receiver_preview
from actors.inspection.problems import ProblemSearch
from actors.session.decisions import delivery_preview
from projections.state.client_history import ClientHistories
from simulation import answers
from simulation.answers import run
from simulation.incidents import INCIDENTS
from simulation.mutants import sets

Patch = pytest.MonkeyPatch

SEEDS = max(6, int(os.environ.get("FOLDMQ_SEEDS", "0")))
TELLING = (1, 0, 2, 3)
"""Seeds of which one detects each mutant."""


@functools.cache
def outcome(seed: int) -> Counter[str]:
    """What a run was like; it runs once."""
    return run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_answer_is_true(seed: int) -> None:
    outcome(seed)


@pytest.mark.slow
def test_the_runs_contain_every_incident_and_every_kind_of_answer() -> None:
    counts = sum((outcome(seed) for seed in range(6)), Counter())
    assert not {incident.name for incident in INCIDENTS} - counts.keys()
    for about in ("why: ", "preview: "):
        assert {f"{about}dropped", f"{about}queued"} <= counts.keys()
    titles = {key for key in counts if not key.startswith(("why: ", "preview: "))}
    assert len(titles) >= len(INCIDENTS) + 9


# ------------------------------------------------------------------------------------- mutants


def takes_a_window_for_full_when_one_is_left(patch: Patch) -> None:
    window = ProblemSearch._window

    def fuller(search: ProblemSearch, state: Any) -> Any:
        held = [*state.subscriptions.values()]
        for one in held:
            one.outstanding += 1
        found = [*window(search, state)]
        for one in held:
            one.outstanding -= 1
        return iter(found)

    patch.setattr(ProblemSearch, "_window", fuller)


def takes_a_drop_for_one_of_every_reason(patch: Patch) -> None:
    dropped = ClientHistories.dropped

    def at_once(
        histories: ClientHistories, client: str, reason: str, count: int, ms: int, **more: bool
    ) -> None:
        dropped(histories, client, reason, count, ms, **more)
        history = histories.find(client)
        assert history.dropped_at is not None
        history.dropped_at.update(dict.fromkeys(history.dropped_at, ms))

    patch.setattr(ClientHistories, "dropped", at_once)


def names_another_client(patch: Patch) -> None:
    take = ProblemSearch._take
    patch.setattr(ProblemSearch, "_take", lambda search, _client, found: take(search, "bob", found))


def previews_a_message_as_sent_to_a_full_window(patch: Patch) -> None:
    preview = delivery_preview.preview_delivery

    def sent(*args: Any) -> Any:
        found = preview(*args)
        return found._replace(outcome="sent") if found.outcome == "queued" else found

    patch.setattr(receiver_preview.delivery_preview, "preview_delivery", sent)


def previews_no_full_queue(patch: Patch) -> None:
    preview = delivery_preview.preview_delivery

    def queued(*args: Any) -> Any:
        found = preview(*args)
        return found._replace(outcome="queued") if found.outcome == "dropped" else found

    patch.setattr(receiver_preview.delivery_preview, "preview_delivery", queued)


def takes_a_disconnect_for_a_failure(patch: Patch) -> None:
    closed = ClientHistories.closed

    def failed(histories: ClientHistories, client: str, reason: str, ms: int) -> None:
        closed(histories, client, "error" if reason == "disconnect" else reason, ms)

    patch.setattr(ClientHistories, "closed", failed)


MUTANTS: dict[str, Callable[[Patch], None]] = {
    "looks_at_no_history": sets(
        ProblemSearch, "_of_history", lambda _search, _name, _history: iter(())
    ),
    "forgets_after_half_the_time": sets(problems, "RECENT_MS", problems.RECENT_MS // 2),
    "needs_one_more_takeover": sets(problems, "_DUPLICATE", problems._DUPLICATE + 1),
    "needs_one_takeover_less": sets(problems, "_DUPLICATE", problems._DUPLICATE - 1),
    "names_another_client": names_another_client,
    "previews_a_message_as_sent_to_a_full_window": previews_a_message_as_sent_to_a_full_window,
    "previews_no_full_queue": previews_no_full_queue,
    "looks_only_at_full_windows": sets(problems, "stalled", lambda _node, _name: None),
    "never_sees_a_client_fail": sets(problems, "_lasting_ms", lambda _ages: 0),
    "takes_a_disconnect_for_a_failure": takes_a_disconnect_for_a_failure,
    "forgets_what_earlier_connections_left": sets(
        problems, "earlier", lambda _connection, _state, _node: None
    ),
}
SLOW: dict[str, Callable[[Patch], None]] = {
    "looks_at_no_window": sets(ProblemSearch, "_window", lambda _search, _state: iter(())),
    "takes_a_window_for_full_when_one_is_left": takes_a_window_for_full_when_one_is_left,
    "looks_at_no_reader": sets(ProblemSearch, "_reader", lambda _search, _connection: iter(())),
    "remembers_for_twice_as_long": sets(problems, "RECENT_MS", 2 * problems.RECENT_MS),
    "counts_connects_of_two_minutes": sets(problems, "_FLAPPING_MS", 2 * problems._FLAPPING_MS),
    "waits_for_half_a_minute_before_it_names_a_full_window": sets(
        problems, "_UNACKNOWLEDGED_MS", 3 * problems._UNACKNOWLEDGED_MS
    ),
    "names_a_full_window_at_once": sets(problems, "_UNACKNOWLEDGED_MS", 0),
    "never_sees_a_queue_fill": sets(problems, "_FILLING", 1.0),
    "takes_a_drop_for_one_of_every_reason": takes_a_drop_for_one_of_every_reason,
    "tells_what_is_over_as_present": sets(problems, "_LASTS_MS", 2 * problems._LASTS_MS),
    "takes_a_client_that_stays_connected_for_one_that_fails": sets(
        problems, "_lasting_ms", lambda _ages: problems._FLAPPING_MS
    ),
    "previews_no_silent_member": sets(receiver_preview, "stalled", lambda _node, _name: None),
}
"""Those that are detected after several runs: ``make drills`` has them."""


@pytest.mark.plain
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*MUTANTS, *(pytest.param(name, marks=pytest.mark.long) for name in SLOW)]
)
def test_an_answer_that_is_not_true_is_detected(name: str, monkeypatch: Patch) -> None:
    (MUTANTS | SLOW)[name](monkeypatch)
    for seed in TELLING:
        try:
            run(seed)
        except answers.WrongAnswerError as error:
            print(f"caught by seed {seed}: {error}")
            return
    pytest.fail(f"a broker that {name} passes")

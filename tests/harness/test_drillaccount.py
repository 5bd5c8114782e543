"""The account of drills: each kind of broken promise is found, and a clean account passes."""

import pytest

from harness.drillaccount import Account, Closing, Message
from harness.packets import Connack, Publish


def message(number: int, qos: int = 1) -> Message:
    return Message("pub", "data/t", qos, number)


def copy(one: Message, packet_id: int | None, *, dup: bool = False) -> Publish:
    return Publish(one.topic, one.payload, one.qos, packet_id, dup)


@pytest.fixture
def account() -> Account:
    made = Account()
    made.subscribed("sub", "data/", 2)
    for qos in (0, 1, 2):
        for number in (1, 2):
            made.sent(message(number, qos))
            if qos:
                made.acknowledged(message(number, qos))
    return made


def deliver_all(account: Account) -> None:
    for qos in (0, 1, 2):
        for number in (1, 2):
            one = message(number, qos)
            packet_id = 10 * qos + number if qos else None
            account.received("sub", copy(one, packet_id), accepted=True)


def test_clean(account: Account) -> None:
    deliver_all(account)
    account.received("sub", copy(message(1), 11, dup=True), accepted=True)
    account.received("sub", copy(message(1, 2), 21, dup=True), accepted=False)
    assert account.problems() == []


def test_loss_is_found(account: Account) -> None:
    assert len(account.missing()) == 4
    deliver_all(account)
    assert account.missing() == []


@pytest.mark.parametrize("qos", [0, 2])
def test_second_delivery_is_found(account: Account, qos: int) -> None:
    deliver_all(account)
    account.received("sub", copy(message(1, qos), None if not qos else 21), accepted=True)
    assert any("delivered 2 times" in problem for problem in account.problems())


def test_redelivery_without_dup_is_found(account: Account) -> None:
    deliver_all(account)
    account.received("sub", copy(message(1), 11), accepted=True)
    assert any("without DUP" in problem for problem in account.problems())
    account.sent(message(1))
    assert account.problems() == []


def test_redelivery_under_another_identifier_is_found(account: Account) -> None:
    deliver_all(account)
    account.received("sub", copy(message(1), 99, dup=True), accepted=True)
    assert any("identifiers [11, 99]" in problem for problem in account.problems())


def test_wrong_order_is_found() -> None:
    account = Account()
    account.subscribed("sub", "data/", 1)
    for number in (2, 1):
        account.sent(message(number))
        account.received("sub", copy(message(number), number), accepted=True)
    assert any("came after 2" in problem for problem in account.problems())


def test_a_message_that_was_never_sent_is_found(account: Account) -> None:
    deliver_all(account)
    account.received("sub", copy(message(7), 7), accepted=True)
    assert any("never sent" in problem for problem in account.problems())


def test_lost_session_is_found(account: Account) -> None:
    deliver_all(account)
    account.connack("sub", Connack(0, session_present=False))
    account.connack("sub", Connack(0, session_present=True))
    assert account.problems() == []
    account.connack("sub", Connack(0, session_present=False))
    assert account.problems() == ["sub: the session is lost"]


def come(account: Account, number: int) -> None:
    """Record that a will of a client arrived."""
    one = Message("mortal", "will/mortal", 1, number)
    account.received("watch", copy(one, number), accepted=True)


def test_wrong_wills_are_found() -> None:
    account = Account()
    account.subscribed("watch", "will/", 1)
    account.will("mortal", 1, "due")
    account.cancelled("mortal", 2, 10, 20)
    come(account, 2)
    absent, came = account.problems()
    assert absent == "watch: the will 1 of mortal was due and never came"
    assert came.startswith("watch: will 2 of mortal was cancelled, but came: connected at 00:00:00")


@pytest.mark.parametrize(("time_ms", "open_"), [(9, False), (10, True), (20, True), (21, False)])
def test_a_will_is_left_open_if_the_broker_closed_its_connection(
    time_ms: int, *, open_: bool
) -> None:
    account = Account()
    account.subscribed("watch", "will/", 1)
    account.cancelled("mortal", 1, 10, 20)
    come(account, 1)
    left = account.doubt([Closing(time_ms, "node b leads")])
    assert left == ([f"will 1 of mortal: 00:00:00.0{time_ms} node b leads"] if open_ else [])
    assert len(account.problems()) == (not open_)


def test_doubt_leaves_no_will_open_that_was_due() -> None:
    account = Account()
    account.subscribed("watch", "will/", 1)
    account.will("mortal", 1, "due")
    assert account.doubt([Closing(0, "node b leads")]) == []
    assert len(account.problems()) == 1


def test_retained_bounds() -> None:
    account = Account()
    for number in (1, 2, 3):
        account.sent(Message("keeper", "retained/a", 1, number))
    account.acknowledged(Message("keeper", "retained/a", 1, 2))
    assert account.retained_bounds() == {"retained/a": (2, 3)}

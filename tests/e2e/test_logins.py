"""Logins: hashes of two kinds, tokens, an auth callout over NATS, and the login back-off."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import argon2
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from harness import mqtt5_packets as p5
from harness.broker import Broker
from harness.fixtures import Clients, unique
from harness.mqtt5_rawclient import RawClient5
from harness.packets import CONNACK, PUBACK, Connack
from harness.rawclient import RawClient
from harness.waiting import until

from e2e.bridging import Place, Visitor

KEY = ec.generate_private_key(ec.SECP256R1())
SUBJECT = "foldmq.auth"
# Of mosquitto_passwd 2.0.11, the password is "secret ä".
OLD_USER = (
    "olduser:$7$101$8FmDYHfjXpgBt6XL$smiDWt+CpW+OhOtvaVmC/Uf3yRX/+ZErAynofgBlPZ4D2/g7QfwDm8Rlkyk7O7"
    "LWXIcjsHPVpo8S9nG8iXcXFA==\n"
)
PERMISSIONS = """
[[allow]]
groups = ["staff"]
both = ["staff/%u/#"]

[[allow]]
users = ["ada"]
both = ["#"]
"""
ACCEPTED, UNAVAILABLE, WRONG, NOT_AUTHORISED = Connack(0), Connack(3), Connack(4), Connack(5)


CHEAP = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)


def user_line(user: str, password: str) -> str:
    """A line of a password file, with a hash that takes no time."""
    return f"{user}:{CHEAP.hash(password)}\n"


class CalloutService:
    """Answers the broker's questions about logins as the test says."""

    def __init__(self, visitor: Visitor) -> None:
        self.questions: list[dict[str, Any]] = []
        self.answers: dict[str | None, dict[str, Any] | bytes | None] = {}
        self._lock = threading.Lock()
        visitor.do(visitor.client.subscribe(SUBJECT, cb=self._answer))
        visitor.flush()

    async def _answer(self, message: Any) -> None:
        question = json.loads(message.data)
        with self._lock:
            self.questions.append(question)
        answer = self.answers.get(question["user"], {"allow": False, "cache": 0})
        if isinstance(answer, dict) and "steps" in answer:
            answer = answer["steps"][question["step"] - 1]
        if answer is not None:
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            await message.respond(data)

    def asked_about(self, user: str | None) -> int:
        with self._lock:
            return sum(question["user"] == user for question in self.questions)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A broker that knows all ways in, and whose NATS is open to a doorkeeper."""
    folder = tmp_path_factory.mktemp("logins")
    public = KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (folder / "keys.pem").write_bytes(public)
    (folder / "permissions.toml").write_text(PERMISSIONS)
    users = folder / "users"
    known = (user_line(user, f"right for {user}") for user in ("ada", "guessed", "locked", "storm"))
    users.write_text(OLD_USER + "".join(known))
    visitors = folder / "nats-users"
    visitors.write_text("doorkeeper:of the door\nother:of the other\n")
    made = Place(
        folder,
        f"""
nats_users = "{visitors}"
auth_nats_user = "doorkeeper"
password_file = "{users}"
jwt_keys = "{folder}/keys.pem"
jwt_issuer = "tests"
jwt_audience = ["broker"]
auth_subject = "{SUBJECT}"
auth_method = "EXAMPLE"
permissions = "{folder}/permissions.toml"
login_failures = 5
login_failures_per_address = 0
log_format = "json"
""",
    )
    made.broker.start()
    yield made
    made.clients.close()
    with suppress(AssertionError):
        made.broker.stop()
    made.broker.clean_up()
    with suppress(OSError):
        pid = made.clients_nats
        if b"nats-server" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    print(f"broker:\n{made.broker.log[-4000:]}")


@pytest.fixture
def keeper(place: Place) -> Iterator[CalloutService]:
    with Visitor(place.nats_port, user="doorkeeper", password="of the door") as visitor:
        yield CalloutService(visitor)


def tried(
    place: Place, username: str | None, password: bytes | str | None, client_id: str = ""
) -> tuple[RawClient, Connack]:
    """A client and how its CONNECT was answered; one that is refused must be closed."""
    client = place.clients.raw()
    shown = password.encode() if isinstance(password, str) else password
    answer = client.connect(client_id or unique("c"), username=username, password=shown)
    if answer.code:
        client.expect_closed()
    return client, answer


def answered(place: Place, username: str | None, password: bytes | str | None) -> Connack:
    return tried(place, username, password)[1]


def token(user: str = "tom", seconds: float = 600, **more: Any) -> str:
    claims = {"sub": user, "iss": "tests", "aud": "broker", "exp": time.time() + seconds, **more}
    return jwt.encode(claims, KEY, "ES256")


# --- password file


# --- tokens


def test_tokens(place: Place) -> None:
    assert answered(place, "tom", token()) == ACCEPTED
    assert answered(place, "", token()) == ACCEPTED
    # A user of the password file may have one as well.
    assert answered(place, "ada", token("ada")) == ACCEPTED
    for name, shown in (
        ("ada", token()),
        ("t2", token("t2", seconds=-1)),
        ("t3", token("t3", iss="others")),
        ("t4", token("t4", aud="others")),
        ("t5", token("t5")[:-6] + "AAAAAA"),
        ("t6", jwt.encode({"sub": "t6"}, KEY, "ES256")),
        ("t7", jwt.encode({"sub": "t7"}, None, "none")),
    ):
        assert answered(place, name, shown) == WRONG
    assert "eyJ" not in place.broker.log


def test_the_connection_ends_with_the_token(place: Place) -> None:
    ends_by_itself(place, lambda seconds: ("tom", token(seconds=seconds)))


def ends_by_itself(place: Place, login: Callable[[float], tuple[str, str]]) -> None:
    """A login that is valid for this many seconds is accepted, and ends after that."""
    for seconds in (1.0, 3.0, 9.0):  # it must still be good when the broker looks at it
        name = unique("short")
        client, answer = tried(place, *login(seconds), name)
        if answer == ACCEPTED:
            break
    else:
        pytest.fail("no login was good when it was looked at")
    client.expect_closed()
    until(
        lambda: name in {line["client"] for line in place.broker.told("login expired")},
        "a line about it",
    )


# --- auth callout


def test_the_question_and_a_plain_answer(place: Place, keeper: CalloutService) -> None:
    keeper.answers["eva"] = {"allow": True}
    name = unique("c")
    _, answer = tried(place, "eva", "pass", name)
    assert answer == ACCEPTED
    (question,) = keeper.questions
    listener, node = question.pop("listener"), question.pop("node")
    assert listener
    assert node
    assert question == {
        "version": 1,
        "client": name,
        "user": "eva",
        "password": "pass",
        "address": "127.0.0.1",
        "certificate_user": None,
    }
    # Users of the file are not asked about.
    assert answered(place, "ada", "right for ada") == ACCEPTED
    assert answered(place, "ada", "wrong again") == WRONG
    assert len(keeper.questions) == 1


def test_the_connection_ends_when_the_login_expires(place: Place, keeper: CalloutService) -> None:
    def login(seconds: float) -> tuple[str, str]:
        keeper.answers["kim"] = {"allow": True, "expires": time.time() + seconds}
        return "kim", "x"

    ends_by_itself(place, login)


def test_a_method_that_the_check_decides_about(place: Place, keeper: CalloutService) -> None:
    def base64_of(data: bytes) -> str:
        return base64.b64encode(data).decode()

    keeper.answers[None] = {
        "steps": [
            {"continue": True, "data_base64": base64_of(b"riddle"), "state": "s", "reason": "go"},
            {
                "allow": True,
                "user": "nora",
                "groups": ["staff"],
                "data_base64": base64_of(b"welcome"),
            },
        ]
    }
    method = (p5.AUTHENTICATION_METHOD, "EXAMPLE")
    again = {"allow": True, "user": "nora", "publish": ["x/#"], "expires": time.time() + 3600}
    keeper.answers["nora"] = {"steps": [again]}
    with closing(RawClient5(place.broker.port)) as client:
        client.send(p5.connect(unique("c"), properties=(method, (p5.AUTHENTICATION_DATA, b"hi"))))
        answer = client.expect_answer(p5.AUTH, code=0x18)
        assert answer.properties == (
            method,
            (p5.AUTHENTICATION_DATA, b"riddle"),
            (p5.REASON_STRING, "go"),
        )
        client.send(p5.auth(0x18, (method, (p5.AUTHENTICATION_DATA, b"42"))))
        connack = client.expect_answer(CONNACK)
        assert connack.get(p5.AUTHENTICATION_METHOD) == "EXAMPLE"
        assert connack.get(p5.AUTHENTICATION_DATA) == b"welcome"
        assert client.subscribe(("staff/nora/a", 1), ("staff/ada/a", 1)) == (1, 0x87)
        client.send(p5.auth(0x19, (method,)))
        client.expect_answer(p5.AUTH, code=0)
        client.send(p5.publish("staff/nora/a", b"", 1, 9))
        client.expect_answer(PUBACK, 9, 0x87)
        client.publish("x/y", b"", 1)
        keeper.answers["nora"] = {"steps": [{"allow": True, "user": "ada"}]}
        client.send(p5.auth(0x19, (method,)))
        client.expect_ended(0x87)
    asked = [one for one in keeper.questions if one.get("method") == "EXAMPLE"]
    assert [(one["step"], one["state"], one["reauthentication"]) for one in asked] == [
        (1, None, False),
        (2, "s", False),
        (1, None, True),
        (1, None, True),
    ]
    assert [one["data_base64"] for one in asked] == ["aGk=", "NDI=", None, None]
    until(lambda: place.broker.told("re-authentication failed"), "a line about it")
    keeper.answers[None] = b"no JSON"
    with closing(RawClient5(place.broker.port)) as client:
        client.send(p5.connect(unique("c"), properties=(method,)))
        client.expect_refused(0x88)


def test_passwords_are_not_on_their_way_to_clients(place: Place, keeper: CalloutService) -> None:
    watcher, _ = tried(place, "ada", "right for ada")
    watcher.subscribe(("#", 0))
    assert answered(place, "otto", "secret of otto") == WRONG
    assert keeper.asked_about("otto") == 1
    watcher.expect_alive()


def test_other_nats_users_neither_see_nor_answer_the_questions(place: Place) -> None:
    seen: list[bytes] = []

    async def answer(message: Any) -> None:
        seen.append(message.data)
        await message.respond(b'{"allow": true}')

    with Visitor(place.nats_port, user="other", password="of the other") as other:
        for subject in (SUBJECT, ">", "foldmq.>", "_INBOX.>"):
            other.do(other.client.subscribe(subject, cb=answer))
        other.flush()
        assert answered(place, "nobody's", "x") == UNAVAILABLE
        other.flush()
    assert seen == []


def test_the_service_of_the_manual(place: Place, tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "authentication.md"
    (program,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    url = f"nats://127.0.0.1:{place.nats_port}"
    program = program.replace("nats://127.0.0.1:4222", url).replace("...", "of the door")
    file = tmp_path / "service.py"
    file.write_text(program)
    service = subprocess.Popen([sys.executable, str(file)])
    try:
        until(lambda: answered(place, "ann", "secret") == ACCEPTED, "an answer")
        assert answered(place, "ann", "wrong") == WRONG
    finally:
        service.kill()
        service.wait()


# --- login back-off


def test_a_right_password_gets_in_after_wrong_ones(place: Place) -> None:
    for number in range(5):
        assert answered(place, "locked", f"guess {number}") == WRONG
    assert answered(place, "locked", "right for locked") == ACCEPTED


# --- changes


def test_sighup_clears_the_cache(make_broker: Callable[..., Broker], tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("".join(user_line(user, "one") for user in ("ada", "bob")))
    own = make_broker(f'password_file = "{users}"\nlogin_failures = 3\n')
    own.start()
    clients = Clients("127.0.0.1", own.port)

    def code(user: str, password: bytes) -> int:
        return clients.raw().connect(unique("c"), username=user, password=password).code

    assert code("ada", b"one") == 0
    assert [code("bob", b"guess %d" % number) for number in range(3)] == [4, 4, 4]
    users.write_text("".join(user_line(user, "two") for user in ("ada", "bob")))
    own.hangup()
    until(lambda: "settings reloaded" in own.log, "a reload")
    assert code("ada", b"one") == 4
    assert code("ada", b"two") == 0
    assert code("bob", b"one") == 4
    own.configure(f'password_file = "{users}"\nlogin_failures = 0\n')
    own.hangup()
    until(lambda: own.log.count("settings reloaded") == 2, "another reload")
    assert code("bob", b"two") == 0
    clients.close()
    own.stop()


def test_a_subject_that_mqtt_clients_could_see(
    make_broker: Callable[..., Broker],
) -> None:
    settings = 'nats_listen = "127.0.0.1:4999"\nauth_subject = "{}"\n'
    needs = "auth_subject with nats_listen also needs nats_users and auth_nats_user"
    assert needs in make_broker(settings.format("foldmq.auth")).refused(78)
    settings += 'nats_users = "u"\nauth_nats_user = "d"\n'
    problem = "auth_subject must begin with"
    assert problem in make_broker(settings.format("auth.check")).refused(78)

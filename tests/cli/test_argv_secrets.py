"""Secrets that are removed from the arguments, and the place where they are kept."""

import pytest

from cli.program.process import without_secrets


@pytest.mark.parametrize(
    ("given", "kept", "found"),
    [
        (["serve", "--nats-password", "x"], ["serve"], {"FOLDMQ_NATS_PASSWORD": "x"}),
        (["serve", "--bridge-password=x=y"], ["serve"], {"FOLDMQ_BRIDGE_PASSWORD": "x=y"}),
        (
            ["serve", "--nats-url", "nats://u:p@h", "--sync", "1"],
            ["serve", "--sync", "1"],
            {"FOLDMQ_NATS_URL": "nats://u:p@h"},
        ),
        (["serve", "--nats-url", "nats://h"], ["serve", "--nats-url", "nats://h"], {}),
        (["serve", "--nats-password"], ["serve", "--nats-password"], {}),
        (["log", "--nats-password", "x"], ["log"], {"FOLDMQ_NATS_PASSWORD": "x"}),
        (["pub", "-P", "x", "-t", "a"], ["pub", "-t", "a"], {"FOLDMQ_PASSWORD": "x"}),
        (["sub", "-Px"], ["sub"], {"FOLDMQ_PASSWORD": "x"}),
        (["sub", "--pw=x"], ["sub"], {"FOLDMQ_PASSWORD": "x"}),
        (["sub", "--url", "mqtt://u:p@h"], ["sub"], {"FOLDMQ_URL": "mqtt://u:p@h"}),
        (["sub", "--url=mqtt://h"], ["sub", "--url=mqtt://h"], {}),
        (["passwd", "-P", "x"], ["passwd", "-P", "x"], {}),
        ([], [], {}),
    ],
)
def test_passwords_are_taken_out(given: list[str], kept: list[str], found: dict[str, str]) -> None:
    assert without_secrets(["foldmq", *given]) == (["foldmq", *kept], found)

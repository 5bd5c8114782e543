"""A test that ends in the middle of a call to Spark leaves a working Spark to later ones."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.sparklimits import limited

ROOT = Path(__file__).resolve().parents[2]
FILE = "tests/harness/interrupted/interrupted_spark.py"


def test_a_start_has_a_limit_of_its_own() -> None:
    signal.setitimer(signal.ITIMER_REAL, 50)
    with limited(300):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 100
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 50


def test_where_tests_have_no_limit_a_start_has_none() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    with limited(300):
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


@pytest.mark.timeout(600)
@pytest.mark.long
@pytest.mark.system
def test_later_tests_get_another_spark() -> None:
    command = [sys.executable, "-m", "pytest", FILE, "-p", "no:cacheprovider", "-vv", "-n", "0"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    results = re.findall(r"(?m)^\S+::(test_\w+) (PASSED|FAILED|ERROR)", ran.stdout)
    expected = [
        ("test_a_fixture_is_ended", "ERROR"),
        ("test_a_start_fails", "FAILED"),
        ("test_the_fixture_is_created_again", "PASSED"),
        ("test_the_jvm_is_killed", "FAILED"),
        ("test_the_next_test_would_start_another", "PASSED"),
    ]
    assert results == expected, ran.stdout

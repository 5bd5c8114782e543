"""The texts with reason codes."""

from protocol.mqtt.reason_codes import ReasonCode, filters_string


def test_what_the_settings_rule_out_is_no_internal_error() -> None:
    code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    said = filters_string([("$replay/all/#", 1)], [code], {})
    assert said == "not possible with the settings of the server: $replay/all/#"


def test_a_reason_that_is_known_comes_instead_of_the_code_in_general() -> None:
    filters = [("a", 1), ("$replay/soon/#", 1), ("$replay/12", 1)]
    codes = [1, ReasonCode.TOPIC_FILTER_INVALID, ReasonCode.TOPIC_FILTER_INVALID]
    reasons = {"$replay/soon/#": "not a moment: soon"}
    assert filters_string(filters, codes, reasons) == (
        "not a moment: soon: $replay/soon/# (and 1 more)"
    )
    assert filters_string(filters[:1], [1], {}) is None

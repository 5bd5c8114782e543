"""The texts with reason codes."""

from protocol.mqtt.reason_codes import ReasonCode, filters_string


def test_what_the_settings_rule_out_is_no_internal_error() -> None:
    code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    said = filters_string([("$replay/all/#", 1)], [code])
    assert said == "not possible with the settings of the server: $replay/all/#"

"""Options: where values come from, what is refused, and how it is said."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_core.options import (
    HANDLER_OPTIONS,
    Derived,
    Option,
    OptionError,
    describe,
    doubts,
    option_table,
    read_options,
    ttl_of,
)

BACKEND = (
    Option(name="db", kind="integer", default=0, minimum=0, maximum=15, sentence="The number of the database."),
    Option(name="password", kind="text", secret=True, sentence="The password."),
    Option(name="tls", kind="flag", default=False, sentence="Whether to use TLS."),
)


def read(config: dict[str, Any] | None = None, environ: dict[str, str] | None = None):
    return read_options(HANDLER_OPTIONS, BACKEND, config=config, environ=environ)


def refusal(config: dict[str, Any] | None = None, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(OptionError) as caught:
        read(config, environ)
    return str(caught.value)


def test_defaults():
    values = read()
    assert dict(values) == {
        "join_timeout": 600.0,
        "last_call_timeout": 30.0,
        "close_timeout": 30.0,
        "heartbeat_timeout": 5.0,
        "keep_alive_interval": 5.0,
        "keep_alive_max_attempt": 3,
        "regroup_timeout": 0.5,
        "scale_up_delay": 15.0,
        "bootstrap_timeout": 60.0,
        "bootstrap_ports": None,
        "leave_timeout": 300.0,
        "store_outage_timeout": 300.0,
        "closed_ttl": 60.0,
        "restart_on_node_loss": "always",
        "placement": "sorted",
        "rank_hint": None,
        "domain": None,
        "allow_default_run_id": False,
        "db": 0,
        "password": None,
        "tls": False,
    }
    assert set(values.sources.values()) == {"default"}
    assert values.warnings == ()


def test_defaults_follow_the_options_that_they_derive_from():
    values = read({"last_call_timeout": 0.2, "join_timeout": 10, "keep_alive_interval": 2})
    assert values["regroup_timeout"] == 0.2
    assert values["leave_timeout"] == 5.0
    assert values["scale_up_delay"] == 6.0


@pytest.mark.parametrize(("interval", "attempts", "ttl"), [(5, 3, 15), (5, 1, 15), (5, 4, 20), (0.2, 3, 0.6)])
def test_the_ttl_is_at_least_three_intervals(interval: float, attempts: int, ttl: float):
    values = read({"keep_alive_interval": interval, "keep_alive_max_attempt": attempts})
    assert ttl_of(values) == pytest.approx(ttl)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("30", 30.0),
        (30, 30.0),
        (30.0, 30.0),
        ("0.25", 0.25),
        (".5", 0.5),
        (timedelta(milliseconds=1500), 1.5),
        ("30s", 30.0),
        ("5m", 300.0),
        ("1.5 h", 5400.0),
        ("1e3", 1000.0),
        (" 7 ", 7.0),
    ],
)
def test_durations(given: Any, seconds: float):
    assert read({"close_timeout": given})["close_timeout"] == seconds


@pytest.mark.parametrize(
    "given",
    ["", "x", "1x", "inf", "nan", "1e400", "-1", "0", 0, -3, True, float("inf"), float("nan"), timedelta(0), [1]],
)
def test_what_is_no_duration(given: Any):
    text = refusal({"close_timeout": given})
    assert text.startswith("Option 'close_timeout': ")
    assert text.endswith(" is not a duration in seconds above 0.")
    assert "\n" not in text


def test_a_duration_that_no_clock_can_express_is_refused_with_the_limit():
    assert read({"close_timeout": 1e9})["close_timeout"] == 1e9
    text = refusal({"close_timeout": 2e9})
    assert text == "Option 'close_timeout': 2000000000.0 is not a duration in seconds above 0 and at most 1e+09."


def test_numbers_that_come_as_text():
    values = read({"keep_alive_interval": "1122", "heartbeat_timeout": "321", "keep_alive_max_attempt": "5"})
    assert (values["keep_alive_interval"], values["heartbeat_timeout"]) == (1122.0, 321.0)
    assert values["keep_alive_max_attempt"] == 5
    assert type(values["keep_alive_max_attempt"]) is int


@pytest.mark.parametrize("given", ["0", -1, "1.5", 1.5, True, "x", "", "\u0661"])
def test_what_is_no_count(given: Any):
    assert "'keep_alive_max_attempt'" in refusal({"keep_alive_max_attempt": given})


def test_bounds_are_told():
    assert refusal({"db": "16"}) == "Option 'db': '16' is not a whole number at least 0 and at most 15."
    assert read({"db": 15})["db"] == 15


PORTS = Option(name="ports", kind="ports", sentence="Ports.")


@pytest.mark.parametrize(
    ("given", "ports"),
    [
        ("29500", range(29500, 29501)),
        (29500, range(29500, 29501)),
        (" 29500 - 29510 ", range(29500, 29511)),
        ("1-65535", range(1, 65536)),
        (range(5, 8), range(5, 8)),
    ],
)
def test_ports(given: Any, ports: range):
    assert PORTS.read(given) == ports
    assert PORTS.show(ports) == f"{ports[0]}-{ports[-1]}"


@pytest.mark.parametrize(
    "given", ["", "0", "0-5", "9-5", "65536", "1-65536", "1-2-3", "-5", "a-b", True, 1.5, range(0), range(5, 1, -1)]
)
def test_what_is_no_ports(given: Any):
    with pytest.raises(ValueError, match=r"is not a port, or a first and a last one as in 29500-29599, from 1 to"):
        PORTS.read(given)


@pytest.mark.parametrize("given", [True, 1, "1", "true", "T", "yes", "on"])
def test_true(given: Any):
    assert read({"tls": given})["tls"] is True


@pytest.mark.parametrize("given", [False, 0, "0", "False", "n", "off"])
def test_false(given: Any):
    assert read({"tls": given})["tls"] is False


@pytest.mark.parametrize("given", [2, "2", "", "maybe", 1.0])
def test_neither_true_nor_false(given: Any):
    assert refusal({"tls": given}).endswith("is not true or false.")


def test_choices():
    assert read({"restart_on_node_loss": "Never"})["restart_on_node_loss"] == "never"
    text = refusal({"placement": "random"})
    assert text == "Option 'placement': 'random' is not one of sorted, natural, stable, hint."


def test_a_misspelt_key_is_told_with_the_nearest():
    text = refusal({"last_cal_timeout": "5"})
    assert "There is no option 'last_cal_timeout'. Did you mean 'last_call_timeout'?" in text
    assert "close_timeout" in text
    assert "'5'" not in text


def test_options_of_handler_and_backend_come_from_one_configuration():
    values = read({"db": "3", "join_timeout": 5})
    assert (values["db"], values["join_timeout"]) == (3, 5.0)
    with pytest.raises(OptionError, match="There is no option 'db'"):
        read_options(HANDLER_OPTIONS, config={"db": 3})


def test_all_faults_are_told_at_once():
    with pytest.raises(OptionError) as caught:
        read({"join_timeout": "x", "databse": 1, "leave_timeout": 0}, {"RDZV_DB": "y"})
    assert len(caught.value.problems) == 4
    for part in ("'join_timeout'", "'databse'", "'leave_timeout'", "RDZV_DB"):
        assert part in str(caught.value)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.problems) == (str(caught.value), caught.value.problems)


@pytest.mark.parametrize(
    ("config", "environ", "value", "source"),
    [
        ({"join_timeout": 1, "timeout": 2}, {"RDZV_JOIN_TIMEOUT": "3", "RDZV_TIMEOUT": "4"}, 1, "config"),
        ({"timeout": 2}, {"RDZV_JOIN_TIMEOUT": "3", "RDZV_TIMEOUT": "4"}, 3, "RDZV_JOIN_TIMEOUT"),
        ({"timeout": 2}, {"RDZV_TIMEOUT": "4"}, 2, "config timeout"),
        ({}, {"RDZV_TIMEOUT": "4"}, 4, "RDZV_TIMEOUT"),
        ({"join_timeout": None}, {"RDZV_TIMEOUT": ""}, 600, "default"),
        ({"timeout": 900}, {}, 900, "config timeout"),
        ({"timeout": "120"}, {}, 120, "config timeout"),
    ],
)
def test_what_wins(config: dict[str, Any], environ: dict[str, str], value: float, source: str):
    values = read(config, environ)
    assert values["join_timeout"] == value
    assert values.sources["join_timeout"] == source


def test_an_alias_without_effect_is_told_unless_torchrun_added_it():
    assert read({"join_timeout": "5", "timeout": 900}).warnings == ()
    assert read({"join_timeout": "5", "timeout": "9"}).warnings == (
        "Option 'timeout' has no effect, because join_timeout is given too.",
    )
    assert "RDZV_JOIN_TIMEOUT" in read({"timeout": "9"}, {"RDZV_JOIN_TIMEOUT": "5"}).warnings[0]


def test_a_variable_fills_in_what_the_configuration_leaves_out():
    assert read({}, {"RDZV_LAST_CALL_TIMEOUT": "7"})["last_call_timeout"] == 7.0
    assert read({"last_call_timeout": 8}, {"RDZV_LAST_CALL_TIMEOUT": "7"})["last_call_timeout"] == 8.0
    text = refusal({}, {"RDZV_LAST_CALL_TIMEOUT": "soon"})
    assert text == (
        "Option 'last_call_timeout': 'soon' is not a duration in seconds above 0 "
        "(from the environment variable RDZV_LAST_CALL_TIMEOUT)."
    )


def test_a_misspelt_variable_is_told():
    values = read({}, {"RDZV_LAST_CAL_TIMEOUT": "7", "RDZV_ENDPOINT": "h", "PATH": "x"})
    assert values["last_call_timeout"] == 30.0
    assert values.warnings == (
        "The environment variable RDZV_LAST_CAL_TIMEOUT is not read; did you mean RDZV_LAST_CALL_TIMEOUT?",
    )


def test_the_rank_hint_comes_from_torchrun_at_last():
    assert read({}, {"PET_NODE_RANK": "4"})["rank_hint"] == 4
    assert read({}, {"PET_NODE_RANK": "4", "RDZV_RANK_HINT": "5"})["rank_hint"] == 5
    values = read({}, {"PET_NODE_RANK": "a"})
    assert values["rank_hint"] is None
    assert "PET_NODE_RANK is passed over" in values.warnings[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [("a%2Cb", "a,b"), ("100%25", "100%"), ("a=b", "a=b"), ("%C3%A9", "\u00e9"), ("a+b", "a+b")],
)
def test_text_of_the_configuration_is_percent_decoded(text: str, value: str):
    assert read({"password": text})["password"] == value


def test_text_of_the_environment_is_taken_as_it_is():
    assert read({}, {"RDZV_PASSWORD": "a%2Cb%"})["password"] == "a%2Cb%"


@pytest.mark.parametrize("text", ["50%", "%zz", "%ff"])
def test_a_broken_escape_is_refused_without_showing_it(text: str):
    told = refusal({"password": f"hunter2{text}"})
    assert told.startswith("Option 'password': ")
    assert "hunter2" not in told


def test_a_secret_is_never_shown():
    values = read({"password": "hunter2"})
    assert "hunter2" not in describe(values) + repr(values)
    assert "password=*** (config)" in describe(values)
    assert "hunter2" not in refusal({"pasword": "hunter2"})
    assert refusal({"password": 5}) == "Option 'password': the value given is not a text that is not empty."
    assert "hunter2" not in refusal({"db": "redis://u:hunter2@h"})


def test_the_effective_configuration_fits_one_line():
    text = describe(read({"timeout": 900, "db": "3", "scale_up_delay": 0.1}, {"RDZV_TLS": "1"}))
    assert "\n" not in text
    assert text.startswith("join_timeout=900 s (config timeout), last_call_timeout=30 s, ")
    assert text.endswith("db=3 (config), password=not set, tls=true (RDZV_TLS)")
    assert "scale_up_delay=0.1 s (config)" in text


def test_values_cannot_be_changed():
    values = read()
    with pytest.raises(TypeError):
        values["db"] = 1
    with pytest.raises(KeyError):
        values["nope"]


def test_doubts():
    assert doubts(read()) == ()
    assert "last_call_timeout (30 s) is not below" in doubts(read({"join_timeout": 30}))[0]


@pytest.mark.parametrize("name", ["backend", "endpoint", "run_id", "min_nodes", "max_nodes", "local_addr"])
def test_names_that_torch_takes_cannot_be_declared(name: str):
    with pytest.raises(ValueError, match="torch takes that name"):
        Option(name=name, kind="text", sentence="x")
    with pytest.raises(ValueError, match="torch takes that name"):
        Option(name="x", aliases=(name,), kind="text", sentence="x")


@pytest.mark.parametrize("name", ["", "Big", "a-b", "1a", "a b"])
def test_names_are_plain(name: str):
    with pytest.raises(ValueError, match="small letters"):
        Option(name=name, kind="text", sentence="x")


def test_choices_and_kind_belong_together():
    with pytest.raises(ValueError, match="come together"):
        Option(name="x", kind="text", choices=("a",), sentence="x")
    with pytest.raises(ValueError, match="come together"):
        Option(name="x", kind="choice", sentence="x")


def test_a_name_is_declared_once():
    twice = (Option(name="timeout", kind="duration", sentence="x"),)
    with pytest.raises(ValueError, match="'timeout' is declared twice"):
        read_options(HANDLER_OPTIONS, twice)


def test_declared_defaults_are_values_that_may_be_given():
    for option in HANDLER_OPTIONS:
        if option.default is not None and not isinstance(option.default, Derived):
            assert option.read(option.default) == option.default
            assert option.read(str(option.default)) == option.default


def test_the_table_tells_everything():
    table = option_table((*HANDLER_OPTIONS, *BACKEND))
    assert len(table.splitlines()) == 2 + len(HANDLER_OPTIONS) + len(BACKEND)
    row = next(line for line in table.splitlines() if line.startswith("| `join_timeout`"))
    assert "`RDZV_JOIN_TIMEOUT`" in row
    assert "| 600 s |" in row
    assert "Also: `timeout`." in row
    assert "| half of `join_timeout` |" in table
    assert "Filled in from `PET_NODE_RANK`." in table
    assert "Secret: never shown." in table


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.timedeltas(), st.binary(max_size=4)
)


@given(st.sampled_from([option.name for option in (*HANDLER_OPTIONS, *BACKEND)]), ANYTHING)
def test_any_value_is_taken_or_refused_by_name(name: str, value: Any):
    try:
        values = read({name: value})
    except OptionError as error:
        told = str(error)
    else:
        option = next(o for o in values.options if o.name == name)
        told = f"Option '{name}': {values[name]}"
        if values[name] is not None:
            assert option.read(values[name]) == values[name]
    assert told.startswith(f"Option '{name}': ")


@given(st.floats(min_value=1e-3, max_value=1e8))
def test_durations_survive_text(seconds: float):
    assert read({"close_timeout": repr(seconds)})["close_timeout"] == seconds

"""Each word that a server may have for no, as old and new servers and clients put it."""

import pytest
import redis
from rdzv_redis.refusals import Attempt, RetryableError, translated

from rdzv_core.errors import RendezvousConnectionError, RendezvousStateError

ATTEMPT = {"where": "db:6379", "what": "write the register"}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (redis.AuthenticationError("invalid username-password pair or user is disabled."), "password is wrong"),
        (redis.ResponseError("WRONGPASS invalid username-password pair"), "password is wrong"),
        (redis.AuthenticationError("Authentication required."), "none was given"),
        (redis.ResponseError("NOAUTH Authentication required."), "none was given"),
        (redis.exceptions.NoPermissionError("this user has no permissions to access one of the keys"), "'~rdzv:*'"),
        (redis.ResponseError("The user executing the script can't access at least one of the keys"), "'~rdzv:*'"),
        (redis.ReadOnlyError("You can't write against a read only replica."), "primary"),
        (redis.ResponseError("Error running script: READONLY You can't write against a read only replica"), "primary"),
        (redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), "maxmemory"),
        (redis.BusyLoadingError("Redis is loading the dataset in memory"), "still loading"),
        (redis.ResponseError("BUSY Redis is busy running a script."), "long script"),
        (redis.ResponseError("MISCONF Redis is configured to save RDB snapshots"), "save to disk"),
        (redis.ResponseError("NOREPLICAS Not enough good replicas to write."), "min-replicas-to-write"),
        (redis.ConnectionError("max number of clients reached"), "Raise maxclients"),
        (redis.ResponseError("DENIED Redis is running in protected mode"), "protected mode"),
        (redis.exceptions.MovedError("3999 127.0.0.1:6381"), "Redis Cluster is not supported yet"),
        (redis.exceptions.ClusterDownError("The cluster is down"), "cluster is down"),
        (redis.exceptions.MasterDownError("Link with MASTER is down"), "lost its primary"),
    ],
)
def test_a_refusal_is_told_with_what_to_do(error, words):
    with pytest.raises(RendezvousConnectionError) as told, translated(Attempt(**ATTEMPT)):
        raise error
    assert "db:6379 refused to write the register" in str(told.value)
    assert words in str(told.value)
    assert str(error) in str(told.value)
    assert told.value.__cause__ is error
    assert not told.value.maybe_applied


@pytest.mark.parametrize(
    "text",
    [
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "Error running script (call to f_1): @user_script:9: WRONGTYPE Operation against a key holding the wrong kind",
    ],
)
def test_a_key_of_another_kind_is_a_state_error(text):
    with pytest.raises(RendezvousStateError, match="another kind of value"), translated(Attempt(**ATTEMPT)):
        raise redis.ResponseError(text)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (redis.BusyLoadingError("Redis is loading the dataset in memory"), True),
        (redis.ConnectionError("Connection reset by peer"), True),
        (redis.TimeoutError("Timeout reading from socket"), True),
        (OSError("Broken pipe"), True),
        (redis.AuthenticationError("invalid password"), False),
        (redis.ReadOnlyError("You can't write against a read only replica."), True),
        (redis.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), False),
    ],
)
def test_only_what_passes_by_itself_is_tried_again(error, passes):
    kind = RetryableError if passes else RendezvousConnectionError
    with pytest.raises(kind), translated(Attempt(**ATTEMPT), again=lambda: True):
        raise error


@pytest.mark.parametrize(
    ("writes", "in_flight", "unsure", "maybe_applied"),
    [
        (True, True, False, True),
        (True, False, True, True),
        (True, False, False, False),
        (False, True, True, False),
    ],
)
def test_a_lost_answer_says_whether_it_may_have_been_done(writes, in_flight, unsure, maybe_applied):
    attempt = Attempt(**ATTEMPT, writes=writes, in_flight=in_flight, unsure=unsure)
    with pytest.raises(RendezvousConnectionError) as told, translated(attempt):
        raise redis.ConnectionError("Connection reset by peer")
    assert told.value.maybe_applied == maybe_applied
    assert ("may have been done" in str(told.value)) == maybe_applied


def test_what_is_not_the_servers_passes():
    for error in (redis.DataError("Invalid input of type: 'dict'"), KeyError("bug")):
        with pytest.raises(type(error)) as told, translated(Attempt(**ATTEMPT), again=lambda: True):
            raise error
        assert told.value is error


def test_a_refusal_does_not_repeat_what_it_was_asked():
    """Where AUTH has another name, its arguments are quoted: user and password."""
    for said in ("unknown command 'AUTH', with args", "unknown command `AUTH`, with args"):
        with pytest.raises(RendezvousConnectionError) as told, translated(Attempt(**ATTEMPT)):
            raise redis.ResponseError(f"{said} beginning with: 'trainer' 's3cret-w0rd' ")
        assert "s3cret" not in str(told.value)
        assert "unknown command" in str(told.value)


def test_a_refusal_after_a_lost_answer_is_still_unsure():
    attempt = Attempt(**ATTEMPT, writes=True, in_flight=True)
    with pytest.raises(RetryableError), translated(attempt, again=lambda: True):
        raise redis.ConnectionError("Connection reset by peer")
    with pytest.raises(RendezvousConnectionError) as told, translated(attempt):
        raise redis.ReadOnlyError("You can't write against a read only replica.")
    assert told.value.maybe_applied

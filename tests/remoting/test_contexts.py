"""Saved contexts: what wins, who may read them, and that no change is lost."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from raftmq.remoting.contexts import (
    ContextError,
    Contexts,
    changing,
    check_name,
    path_of,
    read,
    resolve,
)

PROD = {"namesrv": "10.0.0.1:9876", "accessKey": "ops", "secretKey": "secret-of-prod"}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def save(environment: dict[str, str], current: str = "", **contexts: dict[str, str]) -> None:
    with changing(path_of(environment)) as result:
        result.by_name |= contexts
        result.current = current


def test_context_file_is_readable_only_by_its_owner(environment: dict[str, str]) -> None:
    assert read(path_of(environment)) == Contexts()
    path = path_of(environment)
    old = os.umask(0)
    try:
        save(environment, "prod", prod=PROD)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert read(path) == Contexts("prod", {"prod": PROD})


def test_failed_context_change_is_not_saved(environment: dict[str, str]) -> None:
    save(environment, prod=PROD)
    with pytest.raises(ContextError, match="no context 'test'; known: none"):
        with changing(path_of(environment)) as contexts:
            del contexts.by_name["prod"]
            contexts.get("test")
    assert read(path_of(environment)).by_name == {"prod": PROD}


def test_concurrent_context_changes_are_all_saved(environment: dict[str, str]) -> None:
    def add(number: int) -> None:
        save(environment, "", **{f"c{number}": {"namesrv": f"h:{number}"}})

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read(path_of(environment)).by_name) == 8


def test_named_context_precedes_variables_and_these_the_current_context(
    environment: dict[str, str],
) -> None:
    save(environment, "prod", prod=PROD, test={"namesrv": "test:1"})
    variables = {**environment, "NAMESRV_ADDR": "env:1"}
    account = {"RAFTMQ_ACCESS_KEY": "me", "RAFTMQ_SECRET_KEY": "mine"}
    assert resolve(environment)["NAMESRV_ADDR"] == "10.0.0.1:9876"
    assert resolve(variables) == variables  # nothing of the context, which is for its own cluster
    assert resolve(environment, servers_given=True) == environment
    assert resolve(variables, "prod")["NAMESRV_ADDR"] == "10.0.0.1:9876"
    assert resolve(variables | {"RAFTMQ_CONTEXT": "test"})["NAMESRV_ADDR"] == "env:1"
    assert resolve(environment | {"RAFTMQ_CONTEXT": "test"})["NAMESRV_ADDR"] == "test:1"
    assert resolve(environment | {"RAFTMQ_CONTEXT": "test"}, "prod")["NAMESRV_ADDR"] != "test:1"
    assert resolve(environment)["RAFTMQ_SECRET_KEY"] == "secret-of-prod"
    assert resolve(environment | account)["RAFTMQ_SECRET_KEY"] == "mine"
    # An account comes whole from one place.
    partly = resolve(environment | {"RAFTMQ_ACCESS_KEY": "me"})
    assert "RAFTMQ_SECRET_KEY" not in partly
    token = resolve(environment | account | {"RAFTMQ_SECURITY_TOKEN": "t"}, "prod")
    assert token["RAFTMQ_SECURITY_TOKEN"] == ""
    # A context without an account leaves the variables' one.
    assert resolve(environment | account, "test")["RAFTMQ_ACCESS_KEY"] == "me"
    for named in ({"RAFTMQ_CONTEXT": "gone"}, {}):
        with pytest.raises(ContextError, match="known: prod, test"):
            resolve(environment | named, "" if named else "gone")


@pytest.mark.parametrize(
    ("text", "says"),
    [('{"secret-key', "is not JSON"), ("[]", "holds no contexts"), ("{}", "holds no contexts")],
)
def test_damaged_context_file_is_reported_without_its_content(
    environment: dict[str, str], text: str, says: str
) -> None:
    path = path_of(environment)
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ContextError, match=says) as raised:
        resolve(environment)
    assert "secret-key" not in str(raised.value)
    with pytest.raises(ContextError), changing(path):
        pass
    assert path.read_text() == text


def test_unknown_context_fields_are_ignored(environment: dict[str, str]) -> None:
    path = path_of(environment)
    path.parent.mkdir()
    path.write_text(json.dumps({"contexts": {"a": {"namesrv": "h:1", "later": {"x": 1}}}}))
    assert read(path) == Contexts("", {"a": {"namesrv": "h:1"}})


def test_context_path_and_context_names() -> None:
    assert path_of({"XDG_CONFIG_HOME": "relative"}).is_relative_to(Path.home() / ".config")
    for name in ("", "-x", "a b", "a/b", "x" * 65):
        with pytest.raises(ContextError):
            check_name(name)
    check_name("prod-eu.1_a")

"""`python -m tests.interop.suites DIR`: test suites of others, against brokers of ours.

DIR has checkouts of apache/rocketmq-e2e, apache/rocketmq-clients and apache/rocketmq (at the tag of
a release), in directories of these names; a suite that is not there is left out. Each gets a
cluster of its own: three brokers, a name server and a gRPC proxy. `--apache` runs the suites
against Apache's 5.3.3 instead. Prints a Markdown table, and returns 1 if a test failed. Nothing is
written below DIR.

The suites are unpatched, except the integration tests of apache/rocketmq. These start brokers in
their own process; `integration` points them at a cluster. Tests that read objects of these brokers
are left out, and those of TLS.

Java's suites want a JDK and `mvn`, which resolves what their pom names. The pom does not run them:
Java 17 refuses an option and a Lombok of it. So JUnit's console runs the compiled classes. Node's
suite wants `npm`; the code that its sources lack, made from the protocol's files, is in the
client's package.
"""

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from raftmq.chaos.cluster.topology import Shape
from raftmq.client import Admin
from tests.certificates import Authority
from tests.interop.apache_proxy import PROXY, ApacheWorld
from tests.interop.ours import on_a_loop
from tests.interop.targets import RaftGroup, ask

LOMBOK = "org.projectlombok:lombok:1.18.38"  # the first one of the suites' works with Java 8 alone
CONSOLE = "org.junit.platform:junit-platform-console-standalone:1.8.2"
GENERATED = "rocketmq-client-nodejs@1.0.8"
LIMIT_S = 1800  # of one suite: a bound against hanging
WHY_MAX = 160  # characters of a failure
SETTINGS = {"enablePropertyFilter": "true"}
# Its messages have 4 MiB; what it needs else is on by default.
APACHE = {"mappedFileSizeCommitLog": "67108864", "maxMessageSize": "4194304"} | SETTINGS
# Its tests create a topic at one of three brokers, and expect it there only.
APART = {"mappedFileSizeCommitLog": "64MiB", "joinCluster": "false"}
BASES = ("BaseConf", "IntegrationTestBase")  # start the brokers
START = re.compile(r"namesrvController = IntegrationTestBase.*?(?=initMQAdmin)", re.DOTALL)
STARTED = """
    NAMESRV_ADDR = System.getProperty("namesrvAddr");
    CLUSTER_NAME = System.getProperty("cluster");
    BROKER1_NAME = System.getProperty("broker1");
    BROKER2_NAME = System.getProperty("broker2");
    BROKER3_NAME = System.getProperty("broker3");
    brokerControllerList = ImmutableList.of();
    brokerControllerMap = java.util.Collections.emptyMap();
"""
FROM_OUTSIDE = (
    (re.compile(r"brokerController(\d)\.getBrokerAddr\(\)"), r'System.getProperty("address\1")'),
    (re.compile(r"brokerController(\d)\.getBrokerConfig\(\)\.getBrokerName\(\)"), r"BROKER\1_NAME"),
    (re.compile(r"brokerController\d\.getBrokerConfig\(\)\.set\w+\([^;]*\);"), ""),
)
INSIDE = re.compile(
    r"\borg\.apache\.rocketmq\.(broker|container|controller|namesrv|proxy|store|test\.tls)\b"
    r"|\b(brokerController|namesrvController)"
)


@dataclass(frozen=True, slots=True)
class Target:
    """The addresses of a cluster that is up."""

    namesrv: str
    proxy: str
    cluster: str
    brokers: dict[str, str] = field(default_factory=dict)  # by name, the leader's address


@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    client: str
    where: str  # below DIR
    run: Callable[[Path, Path, Target], None]  # sources, an empty directory, target
    tls: bool = False  # its client cannot speak without
    apart: bool = False  # three groups of one broker, with APART; Apache's starts its own


def java(sources: Path, work: Path, target: Target, *, select: tuple[str, ...] = ()) -> None:
    """Compile all of a Maven module, and run its tests. `select`: options of JUnit's console."""
    tools, classes = work / "tools", work / "classes"
    for artifact in (LOMBOK, CONSOLE):
        copy = ["dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={tools}"]
        must(["mvn", "-B", "-q", *copy], work)
    listed = work / "classpath"
    must(["mvn", "-B", "-q", "dependency:build-classpath", f"-Dmdep.outputFile={listed}"], sources)
    libraries = listed.read_text().strip()
    lombok = str(next(tools.glob("lombok*")))
    options = ["-nowarn", "-encoding", "UTF-8", "-cp", libraries, "-processorpath", lombok]
    must(["javac", *options, "-d", str(classes), *map(str, sources.glob("src/**/*.java"))], work)
    resources = [str(sources / "src" / kind / "resources") for kind in ("test", "main")]
    path = [str(classes), *resources, libraries, *map(str, tools.glob("junit*"))]
    properties = {"user.home": work, "namesrvAddr": target.namesrv, "endPoint": target.proxy}
    properties |= {"rocketmq.name-server": target.namesrv, "cluster": target.cluster}
    for number, (name, address) in enumerate(sorted(target.brokers.items()), 1):
        properties |= {f"broker{number}": name, f"address{number}": address}
    command = ["java", *(f"-D{key}={value}" for key, value in properties.items())]
    command += ["-cp", os.pathsep.join(path), "org.junit.platform.console.ConsoleLauncher"]
    command += ["--scan-classpath", str(classes), "--reports-dir", str(work / "reports"), *select]
    logged(command, sources, work, cluster=target.cluster)


def integration(sources: Path, work: Path, target: Target) -> None:
    """Run the integration tests of Apache's broker in a copy, against brokers that are up."""
    copy = work / "rocketmq"
    shutil.copytree(sources, copy / "test", ignore=shutil.ignore_patterns("target"))
    shutil.copy(sources.parent / "pom.xml", copy)
    tests: dict[Path, str] = {}
    for path in copy.glob("test/src/test/java/**/*.java"):
        text = path.read_text()
        if path.stem in BASES:
            path.write_text(START.sub(STARTED, text))
            continue
        for pattern, other in FROM_OUTSIDE:
            text = pattern.sub(other, text)
        tests[path] = text
    inside: set[Path] = set()
    while more := {path for path, text in tests.items() if _needs(text, inside)} - inside:
        inside |= more
    for path, text in tests.items():
        path.unlink() if path in inside else path.write_text(text)
    java(copy / "test", work, target, select=("--include-classname", r".*\.\w+IT"))


def _needs(text: str, inside: set[Path]) -> bool:
    """Whether a test needs brokers of its own process, or one of these classes."""
    return bool(INSIDE.search(text)) or any(re.search(rf"\b{path.stem}\b", text) for path in inside)


def node(sources: Path, work: Path, target: Target) -> None:
    """Run Mocha in a copy, with the topics that the suite's own script makes."""

    async def topics(admin: Admin) -> None:
        for kind in ("Normal", "Fifo", "Delay", "Transaction"):
            await admin.topic.create(f"TopicTestFor{kind}", message_type=kind.upper())
            await admin.cluster.route(f"TopicTestFor{kind}")

    ask(target.namesrv, topics)
    copy = work / "nodejs"
    shutil.copytree(sources, copy, ignore=shutil.ignore_patterns("node_modules"))
    must(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], copy)
    must(["npm", "pack", "--silent", GENERATED], work)
    must(["tar", "xf", str(next(work.glob("*.tgz")))], work)
    shutil.copytree(work / "package" / "proto", copy / "proto", dirs_exist_ok=True)
    report = {"TEST_REPORTER": "xunit", "ROCKETMQ_NODEJS_CLIENT_ENDPOINTS": target.proxy}
    logged(["npx", "--no-install", "egg-bin", "test"], copy, work, **report)
    text = (work / "log").read_text()
    start, end = text.find("<testsuite "), text.find("</testsuite>")
    assert start >= 0 and end >= 0, text[-2000:]
    (work / "reports").mkdir()
    (work / "reports" / "mocha.xml").write_text(text[start:end] + "</testsuite>")


SUITES = (
    Suite("e2e, gRPC", "client-java 5.0.3", "rocketmq-e2e/java/e2e", java, tls=True),
    Suite("e2e, remoting", "rocketmq-client 4.9.3", "rocketmq-e2e/java/e2e-v4", java),
    Suite("e2e, Spring", "spring-boot-starter 2.2.3", "rocketmq-e2e/java/e2e-spring", java),
    Suite("Node's own", "rocketmq-client-nodejs", "rocketmq-clients/nodejs", node),
    Suite("integration", "rocketmq-client 5.3.3", "rocketmq/test", integration, apart=True),
)


def must(command: list[str], where: Path) -> None:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=LIMIT_S)
    said = (done.stdout + done.stderr)[-3000:]
    assert done.returncode == 0, f"{' '.join(command)[:500]}\n{said}"


def logged(command: list[str], where: Path, work: Path, **environment: str) -> None:
    """Run tests: what they come to is in their report. All output goes to `work`/log."""
    with open(work / "log", "w") as log:
        variables = {**os.environ, **environment}
        subprocess.run(
            command, cwd=where, env=variables, stdout=log, stderr=subprocess.STDOUT, timeout=LIMIT_S
        )


@contextmanager
def ours(directory: Path, suite: Suite) -> Iterator[Target]:
    certificate, key = Authority(directory).issue("proxy")
    enforcing = {"tlsServerCertPath": certificate, "tlsServerKeyPath": key}
    proxy = {"tlsServerMode": "enforcing", **enforcing} if suite.tls else {}
    shape = Shape(groups=3, replicas=1, proxies=1) if suite.apart else Shape(proxies=1)
    settings = SETTINGS | (APART if suite.apart else {})
    group = RaftGroup(directory / "cluster", shape, proxy, **settings)

    async def leaders(admin: Admin) -> dict[str, str]:
        brokers = (await admin.cluster.info()).brokers
        return {name: broker.leader or "" for name, broker in brokers.items()}

    try:
        brokers = ask(group.namesrv, leaders)
        yield Target(group.namesrv, group.proxies[0], "DefaultCluster", brokers)
    finally:
        group.down()


@contextmanager
def apaches(directory: Path, suite: Suite) -> Iterator[Target]:
    """Its proxy takes TLS, and connections without, at one port."""

    async def begin():
        return await ApacheWorld(directory / "apache", **APACHE).__aenter__()

    with on_a_loop() as loop:
        world = asyncio.run_coroutine_threadsafe(begin(), loop).result()
        try:
            (proxy,) = world.proxies
            name = str(PROXY["rocketMQClusterName"])
            yield Target(world.namesrv, f"127.0.0.1:{proxy.port}", name)
        finally:
            asyncio.run_coroutine_threadsafe(world.__aexit__(), loop).result()


def results(reports: Path) -> tuple[int, list[str]]:
    """How many tests passed; which failed, and why."""
    passed, failed = 0, []
    for report in sorted(reports.glob("*.xml")):
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            for wrong in (*case.iter("failure"), *case.iter("error")):
                why = " ".join((wrong.get("message") or wrong.text or "").split())[:WHY_MAX]
                failed.append(f"`{case.get('name')}`: {why}".replace("|", "\\|"))
            passed += not {"failure", "error", "skipped"} & {child.tag for child in case}
    return passed, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--apache", action="store_true", help="Apache's 5.3.3, not ours")
    parser.add_argument("--only", metavar="WORD", default="", help="suites with this in their name")
    options = parser.parse_args()
    print("| suite | client | passed | failed | which, and why |\n|---|---|---|---|---|")
    right = True
    for suite in SUITES:
        sources = (options.dir / suite.where).resolve()
        if options.only not in suite.name or (options.apache and suite.apart):
            continue
        if not sources.exists():
            print(f"{sources} is not there: {suite.name} is left out", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as text:
            work = Path(text) / "work"
            work.mkdir()
            with (apaches if options.apache else ours)(Path(text), suite) as target:
                suite.run(sources, work, target)
            passed, failed = results(work / "reports")
        cells = (suite.name, suite.client, passed, len(failed), "; ".join(failed))
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        right = right and passed > 0 and not failed
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

"""What the files in deploy/ promise, as far as it can be seen without a cluster."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from runner.cli.call import read_own
from runner.config.schema.calls.of_serving import ServeCall
from tests.conftest import ROOT

pytest.importorskip("starlette")

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
STEPS = dict(line.split(maxsplit=1) for line in DOCKERFILE.replace("\\\n", " ").splitlines() if line[:1].isupper())
ENTRY = yaml.safe_load(STEPS["ENTRYPOINT"])
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["serve"]
OBJECTS = {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))}
POD = OBJECTS["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def call_of(arguments: list[str]) -> ServeCall:
    return read_own("serve", ServeCall, [*ENTRY[2:], *arguments])


@pytest.fixture(scope="module")
def paths() -> set[str]:
    from runner.tools.serve.endpoints import Endpoints

    call = call_of(["model=/model"])
    return {route.path for route in Endpoints(None, call.serve).application(None).routes}


@pytest.mark.parametrize("arguments", [yaml.safe_load(STEPS["CMD"]), COMPOSE["command"], CONTAINER["args"]])
def test_the_server_takes_the_arguments(arguments):
    call = call_of(arguments)
    assert (call.serve.host, call.serve.port) == ("0.0.0.0", 8080)


def test_the_image_is_the_command():
    assert ENTRY[:2] == ["runner", "serve"]
    assert STEPS["EXPOSE"] == "8080"
    packages = re.search(r'"import (.*?)"', STEPS["RUN"])[1].split(", ")
    source = (ROOT / "runner" / "cli" / "commands" / "serve.py").read_text()
    assert all(f'"{package}"' in source for package in packages)


def test_probes_ask_what_there_is(paths):
    probes = {name: CONTAINER[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/v2/health/ready",
        "readiness": "/v2/health/ready",
        "liveness": "/v2/health/live",
    }
    (port,) = CONTAINER["ports"]
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert port["containerPort"] == 8080
    annotations = OBJECTS["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    asked = re.search(r"http://127\.0\.0\.1:8080(/[\w/]+)", COMPOSE["healthcheck"]["test"][-1])[1]
    assert {probe["path"] for probe in probes.values()} | {asked, annotations["prometheus.io/path"]} <= paths
    (service,) = OBJECTS["Service"]["spec"]["ports"]
    assert service["targetPort"] == port["name"]


def test_a_pod_has_time_to_answer_what_it_accepted():
    drain = call_of(CONTAINER["args"]).serve.drain_seconds
    waits = int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] > drain + waits
    assert int(COMPOSE["stop_grace_period"].removesuffix("s")) > call_of(COMPOSE["command"]).serve.drain_seconds


def test_the_server_may_do_nothing_but_serve():
    assert POD["securityContext"]["runAsNonRoot"] and POD["securityContext"]["runAsUser"] > 0
    assert POD["automountServiceAccountToken"] is False
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all(mount.get("readOnly") for mount in CONTAINER["volumeMounts"] if mount["mountPath"] != "/tmp")
    assert COMPOSE["read_only"] and COMPOSE["cap_drop"] == ["ALL"] and COMPOSE["tmpfs"] == ["/tmp"]
    assert COMPOSE["ports"] == ["127.0.0.1:8080:8080"]


def test_what_the_server_reads_is_mounted():
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in POD["volumes"]}
    call = call_of(CONTAINER["args"])
    assert call.registry.uri == mounts["models"]
    assert call.serve.token_file == f"{mounts['token']}/token"
    assert call_of(COMPOSE["command"]).serve.token_file == f"/run/secrets/{COMPOSE['secrets'][0]}"


def test_it_scales_by_a_metric_that_there_is():
    from runner.tools.serve.serving_metrics import ServingMetrics

    scaler = OBJECTS["HorizontalPodAutoscaler"]["spec"]
    (metric,) = scaler["metrics"]
    page = ServingMetrics(lambda: 3, lambda: 1).page().decode()
    assert f"\n{metric['pods']['metric']['name']} 3.0\n" in page
    assert scaler["scaleTargetRef"]["name"] == OBJECTS["Deployment"]["metadata"]["name"]
    labels = OBJECTS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        OBJECTS["Deployment"]["spec"]["selector"]["matchLabels"],
        OBJECTS["Service"]["spec"]["selector"],
        OBJECTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector == labels


def test_nothing_names_a_registry_of_images():
    for file in DEPLOY.iterdir():
        found = re.findall(r"\w+\.(?:io|org|com)\b(?!/(?:scrape|port|path))", file.read_text(encoding="utf-8"))
        assert not found, (file, found)
    assert shlex.split(STEPS["FROM"]) == ["$RUNNER"]

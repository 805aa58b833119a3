"""Reads the objects of a rendered chart as Kubernetes would."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.helm.rendering import NAMESPACE, Object, rendered

POD_OWNERS = ("StatefulSet", "Deployment", "CronJob", "Job", "Pod")


@dataclass(frozen=True, slots=True)
class Rendered:
    """The objects of one case."""

    objects: list[Object]

    @classmethod
    def of(cls, case: str) -> Rendered:
        return cls(rendered(case))

    def of_kind(self, kind: str) -> list[Object]:
        return [one for one in self.objects if one["kind"] == kind]

    def named(self, kind: str, name: str) -> Object:
        (result,) = [one for one in self.of_kind(kind) if one["metadata"]["name"] == name]
        return result

    def data(self, kind: str, name: str) -> dict[str, str]:
        """The content of a ConfigMap or Secret."""
        one = self.named(kind, name)
        plain: dict[str, str] = one.get("stringData", {})
        kept: dict[str, str] = one.get("data", {})
        if kind == "ConfigMap":
            return kept
        return plain | {key: base64.b64decode(value).decode() for key, value in kept.items()}

    def pods(self) -> list[tuple[Object, Object]]:
        """Each object that makes pods, and the template (metadata and spec) of its pods."""
        result = [(one, template_of(one)) for one in self.objects if one["kind"] in POD_OWNERS]
        assert result, "there are none"
        return result


def template_of(owner: Object) -> Object:
    if owner["kind"] == "Pod":
        return owner
    spec = owner["spec"]
    if owner["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    template: Object = spec["template"]
    return template


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of a StatefulSet or Deployment. `secrets` has what its Secrets hold if they are not
    the chart's own."""

    of: Rendered
    owner: Object
    index: int = 0
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.owner['metadata']['name']}-{self.index}"

    @property
    def spec(self) -> Object:
        spec: Object = template_of(self.owner)["spec"]
        return spec

    @property
    def container(self) -> Object:
        (result,) = self.spec["containers"]
        assert isinstance(result, dict)
        return result

    def secret(self, name: str) -> dict[str, str]:
        return self.secrets[name] if name in self.secrets else self.of.data("Secret", name)

    def environment(self) -> dict[str, str]:
        """Its container's environment, as a kubelet makes it."""
        result: dict[str, str] = {}
        for one in self.container["env"]:
            result[one["name"]] = re.sub(
                r"\$\((\w+)\)", lambda match: result[match[1]], self._value(one)
            )
        return result

    def _value(self, one: Object) -> str:
        if "value" in one:
            return str(one["value"])
        source = one["valueFrom"]
        if "secretKeyRef" in source:
            return self.secret(source["secretKeyRef"]["name"])[source["secretKeyRef"]["key"]]
        fields = {
            "metadata.name": self.name,
            "metadata.namespace": NAMESPACE,
            "metadata.labels['apps.kubernetes.io/pod-index']": str(self.index),
            "metadata.labels['topology.kubernetes.io/zone']": "",
        }
        return fields[source["fieldRef"]["fieldPath"]]

    def files(self) -> dict[str, str]:
        """The files that are mounted from ConfigMaps and Secrets, by their path."""
        volumes = {volume["name"]: volume for volume in self.spec["volumes"]}
        result: dict[str, str] = {}
        for mount in self.container["volumeMounts"]:
            volume = volumes.get(mount["name"], {})
            if "configMap" in volume:
                content = self.of.data("ConfigMap", volume["configMap"]["name"])
            elif "secret" in volume:
                content = self.secret(volume["secret"]["secretName"])
                if "items" in volume["secret"]:
                    items = volume["secret"]["items"]
                    content = {item["path"]: content[item["key"]] for item in items}
            else:
                continue
            result |= {f"{mount['mountPath']}/{key}": text for key, text in content.items()}
        return result

    def write_files(self, root: Path) -> None:
        """Write its files below `root` in the place of /, for nobody else to read."""
        for path, text in self.files().items():
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            target.chmod(0o600)

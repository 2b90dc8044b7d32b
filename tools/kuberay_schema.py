"""Does KubeRay's published schema accept docs/kuberay.yaml? python tools/kuberay_schema.py ray.io_rayclusters.yaml

The file is the operator's custom resource definition, from `helm-chart/kuberay-operator/crds` of its repository. Kubernetes drops
fields that a schema does not name, so this counts them as wrong too. Exits with 1 if the manifest is wrong, and prints why.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft7Validator

from orchestrator import ROOT

MANIFEST = ROOT / "docs" / "kuberay.yaml"


def main() -> int:
    definition = yaml.safe_load(Path(sys.argv[1]).read_text())
    manifest = yaml.safe_load(MANIFEST.read_text())
    group, version = manifest["apiVersion"].split("/")
    schemas = {one["name"]: one["schema"]["openAPIV3Schema"] for one in definition["spec"]["versions"] if one["served"]}
    if definition["spec"]["group"] != group or definition["spec"]["names"]["kind"] != manifest["kind"] or version not in schemas:
        print(f"{sys.argv[1]} does not define {manifest['apiVersion']} {manifest['kind']}")
        return 1
    errors = sorted(Draft7Validator(strict(schemas[version])).iter_errors(manifest), key=str)
    for error in errors:
        print(f"{'.'.join(map(str, error.absolute_path))}: {error.message}")
    print(f"{MANIFEST.name}: {len(errors)} errors")
    return int(bool(errors))


def strict(schema: Any) -> Any:
    """The same schema, with fields refused that it does not name; and with numbers where Kubernetes takes a number or a text."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: strict(value) for key, value in schema.items() if key != "format"}
    if inner.pop("x-kubernetes-int-or-string", False):
        inner["type"] = ["integer", "string"]
    named = isinstance(inner.get("properties"), dict) and "additionalProperties" not in inner
    if named and not inner.get("x-kubernetes-preserve-unknown-fields") and "apiVersion" not in inner["properties"]:
        inner["additionalProperties"] = False
    return inner


if __name__ == "__main__":
    sys.exit(main())

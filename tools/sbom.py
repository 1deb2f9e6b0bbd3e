"""List the contents of a release as CycloneDX: the packages of all extras, and the packages in the web app.

The versions are the tested ones from the lock file. `pip` may choose newer versions.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
IN_WEB_APP = ROOT / "src" / "comfyrelay" / "web" / "app" / "packages.json"
NAME = "comfyrelay"
Graph = Mapping[str, set[str]]
_PIN = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)
_CLASSIFIER = "License :: OSI Approved :: "
# Packages that only some systems need are listed for all systems.
_SYSTEMS = (
    {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"},
    {"sys_platform": "darwin", "platform_system": "Darwin", "os_name": "posix"},
    {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt"},
)
_PYTHONS = ("3.11", "3.14")
_LICENSES = LicenseFactory()


def sbom(version: str) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pins = dict(_PIN.findall((ROOT / "requirements" / "dev.txt").read_text("utf-8")))
    base, graph = _graph(project), _graph(project, project["optional-dependencies"])
    root = Component(
        name=NAME,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=NAME,
        purl=PackageURL("pypi", name=NAME, version=version),
        licenses=[_LICENSES.make_from_string(project["license"])],
    )
    installed = {
        name: _component(
            PackageURL("pypi", name=name, version=pins[name]), _license_of(name), is_optional=name not in base
        )
        for name in sorted(graph.keys() - {NAME})
    }
    bundled = [_component(_npm_url(each), each["license"]) for each in json.loads(IN_WEB_APP.read_text("utf-8"))]
    bom = Bom(
        components=[*installed.values(), *bundled],
        metadata=BomMetaData(component=root),
        dependencies=[
            Dependency(root.bom_ref, map(_leaf, [*(installed[name] for name in sorted(graph[NAME])), *bundled])),
            *(
                Dependency(component.bom_ref, (_leaf(installed[need]) for need in sorted(graph[name])))
                for name, component in installed.items()
            ),
        ],
        serial_number=uuid5(NAMESPACE_URL, f"pkg:pypi/{NAME}@{version}"),
    )
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    # The same sources give the same bytes.
    del document["metadata"]["timestamp"]
    return f"{json.dumps(document, indent=1, sort_keys=True)}\n"


def _component(url: PackageURL, license_text: str | None, *, is_optional: bool = False) -> Component:
    return Component(
        name=url.name,
        group=url.namespace,
        version=url.version,
        bom_ref=str(url),
        purl=url,
        scope=ComponentScope.OPTIONAL if is_optional else ComponentScope.REQUIRED,
        licenses=[_LICENSES.make_from_string(license_text)] if license_text else None,
    )


def _npm_url(package: Mapping[str, str]) -> PackageURL:
    namespace, _, name = package["name"].rpartition("/")
    return PackageURL("npm", namespace=namespace or None, name=name, version=package["version"])


def _leaf(component: Component) -> Dependency:
    return Dependency(component.bom_ref)


def _graph(project: Mapping[str, Any], extras: Iterable[str] = ()) -> Graph:
    """Return the packages that these extras install, each with the packages that it requires."""
    optional = [f"{text}; extra == '{extra}'" for extra in extras for text in project["optional-dependencies"][extra]]
    graph: dict[str, set[str]] = {}
    done: set[tuple[str, str]] = set()
    pending = [(NAME, extra) for extra in ("", *extras)]
    while pending:
        name, extra = pending.pop()
        if (name, extra) in done:
            continue
        done.add((name, extra))
        found = _metadata(name)
        texts = (
            [*project["dependencies"], *optional]
            if name == NAME
            else found.get_all("Requires-Dist", [])
            if found
            else []
        )
        for need in _applicable(texts, extra):
            needed = str(canonicalize_name(need.name))
            graph.setdefault(name, set()).update({needed} - {name})
            pending += [(needed, option) for option in ("", *need.extras)]
        graph.setdefault(name, set())
    return graph


def _applicable(texts: Iterable[str], extra: str) -> Iterator[Requirement]:
    environments = [
        {**system, "python_version": python, "python_full_version": f"{python}.0", "extra": extra}
        for system in _SYSTEMS
        for python in _PYTHONS
    ]
    for need in map(Requirement, texts):
        if need.marker is None or any(map(need.marker.evaluate, environments)):
            yield need


def _metadata(name: str) -> PackageMetadata | None:
    """Return the metadata of a package; `None` if the package is only installed on other systems."""
    try:
        return metadata(name)
    except PackageNotFoundError:
        return None


def _license_of(name: str) -> str | None:
    if (found := _metadata(name)) is None:
        return None
    stated = found["License-Expression"] or found["License"] or ""
    # Some packages have the whole license text there.
    if stated and "\n" not in stated:
        return str(stated)
    classifiers = [each for each in found.get_all("Classifier", []) if each.startswith(_CLASSIFIER)]
    return " AND ".join(each.removeprefix(_CLASSIFIER) for each in classifiers) or None


if __name__ == "__main__":
    [wheel] = (ROOT / "dist").glob("*.whl")
    released = wheel.name.split("-")[1]
    place = wheel.with_name(f"{NAME}-{released}.cdx.json")
    place.write_text(sbom(released), "utf-8", newline="\n")
    print(f"{place.relative_to(ROOT)}  {place.stat().st_size:,} bytes")

"""What KEDA and an external scaler say to each other, by the names and numbers that KEDA publishes.

Made when it is imported: generated modules would be tied to the version of protobuf that made them.
"""

from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "externalscaler"
SERVICE = f"{PACKAGE}.ExternalScaler"

_SCALARS = {
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "string": FieldDescriptorProto.TYPE_STRING,
}
# By message its fields, in the order of their numbers. `*` is for many, and `{}` for a map of strings.
_FIELDS = {
    "ScaledObjectRef": {"name": "string", "namespace": "string", "scalerMetadata": "{}"},
    "IsActiveResponse": {"result": "bool"},
    "GetMetricSpecResponse": {"metricSpecs": "*MetricSpec"},
    "MetricSpec": {"metricName": "string", "targetSize": "int64", "targetSizeFloat": "double"},
    "GetMetricsRequest": {"scaledObjectRef": "ScaledObjectRef", "metricName": "string"},
    "GetMetricsResponse": {"metricValues": "*MetricValue"},
    "MetricValue": {"metricName": "string", "metricValue": "int64", "metricValueFloat": "double"},
}


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="externalscaler.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields.items(), start=1):
            _add_field(message, field, number, kind)
    return file


def _add_field(message: DescriptorProto, name: str, number: int, kind: str) -> None:
    is_map = kind == "{}"
    field = message.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
    if is_map or kind.startswith("*"):
        field.label = FieldDescriptorProto.LABEL_REPEATED
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        return
    field.type = FieldDescriptorProto.TYPE_MESSAGE
    field.type_name = f".{PACKAGE}.{kind.removeprefix('*')}"
    if is_map:
        # a map is a list of messages with a key and a value
        entry = message.nested_type.add(name=f"{name[0].upper()}{name[1:]}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string")
        _add_field(entry, "value", 2, "string")
        field.type_name = f".{PACKAGE}.{message.name}.{entry.name}"


# a pool of its own: another program in this process may know the same names
_POOL = DescriptorPool()
_POOL.AddSerializedFile(_file().SerializeToString())


def _message(name: str) -> Any:
    return GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


ScaledObjectRef = _message("ScaledObjectRef")
IsActiveResponse = _message("IsActiveResponse")
GetMetricSpecResponse = _message("GetMetricSpecResponse")
MetricSpec = _message("MetricSpec")
GetMetricsRequest = _message("GetMetricsRequest")
GetMetricsResponse = _message("GetMetricsResponse")
MetricValue = _message("MetricValue")

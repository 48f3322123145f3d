"""Shipped subjects by name, and how any other is named: `package.module:Class`."""

import importlib

SHIPPED = {
    "vaswani": "specs.subjects.vaswani:Vaswani",
    "fairseq": "specs.subjects.fairseq_stock:FairseqStock",
    "torch": "specs.subjects.torch_nn:TorchTransformer",
    "marian": "specs.subjects.marian:Marian",
    "joeynmt": "specs.subjects.joeynmt_model:JoeyNMT",
    "labml": "specs.subjects.labml_model:Labml",
    "student": "specs.subjects.student:Student",
}


class NotInstalled(Exception):
    """The subject needs a package that is absent."""


def find(name):
    """The subject called `name`: shipped, `package.module:Class`, or `fault:ID` for one of the suite's own faults.

    Raises ValueError when there is no such subject, NotInstalled when its package is missing.
    """
    if name.startswith("fault:"):
        from specs.faults import fault_subject

        return fault_subject(name.removeprefix("fault:"))
    path = SHIPPED.get(name, name)
    module_name, colon, class_name = path.partition(":")
    if not colon or not module_name or not class_name:
        raise ValueError(f"no subject {name!r}: use one of {', '.join(SHIPPED)}, fault:ID, or package.module:Class")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        if name in SHIPPED and error.name and error.name.partition(".")[0] not in ("specs", "vaswani_plugin"):
            raise NotInstalled(f"subject {name} needs a package that is not installed: {error}") from error
        raise ValueError(f"subject {name!r}: cannot import {module_name}: {error}") from error
    if not hasattr(module, class_name):
        raise ValueError(f"subject {name!r}: module {module_name} has no class {class_name}")
    return getattr(module, class_name)()

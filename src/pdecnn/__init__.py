"""Compact convolutional networks from partial differential equations.

A room or a function is imported when it is first asked for. The models are in timm's registry, and the operators in
torch's, as soon as both this package and timm, or torch, are imported, in any order.
"""

from typing import TYPE_CHECKING

from pdecnn.shared.after_import import after_import

__all__ = [
    "Plan",
    "__version__",
    "analysis",
    "condensation",
    "condense",
    "deploy",
    "distill",
    "export",
    "from_pretrained",
    "functional",
    "layers",
    "load",
    "models",
    "optimize_for_inference",
    "plan",
    "profile",
    "push_to_hub",
    "reference",
    "register_block",
    "register_replacement",
    "replace_convs",
    "save",
    "symmetry",
    "testing",
    "training",
    "viz",
]

if TYPE_CHECKING:
    from pdecnn import (
        analysis,
        condensation,
        deploy,
        functional,
        layers,
        models,
        reference,
        symmetry,
        testing,
        training,
        viz,
    )
    from pdecnn.analysis import profile
    from pdecnn.condensation import (
        condense,
        from_pretrained,
        load,
        push_to_hub,
        register_block,
        register_replacement,
        replace_convs,
        save,
    )
    from pdecnn.condensation.distill import distill
    from pdecnn.condensation.plan import Plan, plan
    from pdecnn.deploy import export, optimize_for_inference

    __version__: str
else:
    _ROOMS = {
        "profile": "analysis",
        "Plan": "condensation",
        "condense": "condensation",
        "distill": "condensation",
        "from_pretrained": "condensation",
        "load": "condensation",
        "plan": "condensation",
        "push_to_hub": "condensation",
        "register_block": "condensation",
        "register_replacement": "condensation",
        "replace_convs": "condensation",
        "save": "condensation",
        "export": "deploy",
        "optimize_for_inference": "deploy",
    }

    def __getattr__(name):
        from importlib import import_module, metadata

        if name not in __all__:
            raise AttributeError(f"module 'pdecnn' has no attribute {name!r}")
        if name == "__version__":
            value = metadata.version("pdecnn")
        elif name in _ROOMS:
            value = getattr(import_module(f"pdecnn.{_ROOMS[name]}"), name)
        else:
            value = import_module(f"pdecnn.{name}")
        globals()[name] = value
        return value

    def __dir__():
        return list(__all__)


# torch.ops.pdecnn is complete, and timm.create_model("resnet32_global") works
after_import("pdecnn", {"torch": "pdecnn.functional", "timm": "pdecnn.models"})

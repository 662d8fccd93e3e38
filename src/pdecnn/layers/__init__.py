"""Layers: modules that own parameters and call `functional`; they have no numerics of their own."""

from pdecnn.layers.ball import HardBall, SoftBall
from pdecnn.layers.blocks import BasicBlock, ResidualChain
from pdecnn.layers.cp_block import CPBlock, LiftedBlock, lift
from pdecnn.layers.depthwise import DepthwiseConv2d
from pdecnn.layers.equilibrium import Equilibrium
from pdecnn.layers.global_layer import GlobalLayer
from pdecnn.layers.global_layer_nd import GlobalLayer1d, GlobalLayer3d
from pdecnn.layers.linear_mix import LinearMixConv2d
from pdecnn.layers.ode_block import ODEBlock
from pdecnn.layers.quasilinear import Equation3, Equation4, Equation5, Equation6, Equation7, QuasilinearBlock
from pdecnn.layers.reaction_diffusion import (
    CirculantReactionDiffusion,
    ExplicitReactionDiffusion,
    ImplicitReactionDiffusion,
)
from pdecnn.layers.shared_expand import SharedDepthwiseExpand
from pdecnn.layers.steps import serve_steps, set_steps, with_steps
from pdecnn.layers.tensor_block import TensorBlock
from pdecnn.layers.variable_conv import EulerStep, VariableConv2d, WaveStep
from pdecnn.layers.wave_system import WaveSystem

__all__ = [
    "BasicBlock",
    "CPBlock",
    "CirculantReactionDiffusion",
    "DepthwiseConv2d",
    "Equation3",
    "Equation4",
    "Equation5",
    "Equation6",
    "Equation7",
    "Equilibrium",
    "EulerStep",
    "ExplicitReactionDiffusion",
    "GlobalLayer",
    "GlobalLayer1d",
    "GlobalLayer3d",
    "HardBall",
    "ImplicitReactionDiffusion",
    "LiftedBlock",
    "LinearMixConv2d",
    "ODEBlock",
    "QuasilinearBlock",
    "ResidualChain",
    "SharedDepthwiseExpand",
    "SoftBall",
    "TensorBlock",
    "VariableConv2d",
    "WaveStep",
    "WaveSystem",
    "lift",
    "serve_steps",
    "set_steps",
    "with_steps",
]

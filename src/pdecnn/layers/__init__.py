"""Layers: modules that own parameters and call `kernels`; they have no numerics of their own."""

from pdecnn.layers.ball import HardBall as HardBall
from pdecnn.layers.ball import SoftBall as SoftBall
from pdecnn.layers.blocks import BasicBlock as BasicBlock
from pdecnn.layers.blocks import ResidualChain as ResidualChain
from pdecnn.layers.cp_block import CPBlock as CPBlock
from pdecnn.layers.cp_block import LiftedBlock as LiftedBlock
from pdecnn.layers.cp_block import lift as lift
from pdecnn.layers.depthwise import DepthwiseConv2d as DepthwiseConv2d
from pdecnn.layers.equilibrium import Equilibrium as Equilibrium
from pdecnn.layers.global_layer import GlobalLayer as GlobalLayer
from pdecnn.layers.global_layer import set_steps as set_steps
from pdecnn.layers.linear_mix import LinearMixConv2d as LinearMixConv2d
from pdecnn.layers.ode_block import ODEBlock as ODEBlock
from pdecnn.layers.quasilinear import Equation3 as Equation3
from pdecnn.layers.quasilinear import Equation4 as Equation4
from pdecnn.layers.quasilinear import Equation5 as Equation5
from pdecnn.layers.quasilinear import Equation6 as Equation6
from pdecnn.layers.quasilinear import Equation7 as Equation7
from pdecnn.layers.quasilinear import QuasilinearBlock as QuasilinearBlock
from pdecnn.layers.reaction_diffusion import CirculantReactionDiffusion as CirculantReactionDiffusion
from pdecnn.layers.reaction_diffusion import ExplicitReactionDiffusion as ExplicitReactionDiffusion
from pdecnn.layers.reaction_diffusion import ImplicitReactionDiffusion as ImplicitReactionDiffusion
from pdecnn.layers.shared_expand import SharedDepthwiseExpand as SharedDepthwiseExpand
from pdecnn.layers.variable_conv import EulerStep as EulerStep
from pdecnn.layers.variable_conv import VariableConv2d as VariableConv2d
from pdecnn.layers.variable_conv import WaveStep as WaveStep

# SPDX-License-Identifier: Apache-2.0
"""Provides Keras models with discrete latent variables.

`EstimatorModel` is the base class for your own models.
"""

from tfp_rb.models._pixels import binarize
from tfp_rb.models.control_variate import ControlVariate
from tfp_rb.models.dataset import prepare_dataset
from tfp_rb.models.discrete_vae import DiscreteVAE
from tfp_rb.models.distributed import distributed_evaluate, distributed_fit
from tfp_rb.models.estimator_layer import EstimatorLayer
from tfp_rb.models.estimator_model import EstimatorModel
from tfp_rb.models.moving_vae import MovingVAE
from tfp_rb.models.semisupervised_vae import SemiSupervisedVAE

__all__ = [
  'ControlVariate',
  'DiscreteVAE',
  'EstimatorLayer',
  'EstimatorModel',
  'MovingVAE',
  'SemiSupervisedVAE',
  'binarize',
  'distributed_evaluate',
  'distributed_fit',
  'prepare_dataset',
]

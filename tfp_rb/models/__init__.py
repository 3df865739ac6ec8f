"""Keras models of the paper's experiments."""

from tfp_rb.models.control_variate import ControlVariate
from tfp_rb.models.estimator_layer import EstimatorLayer
from tfp_rb.models.semisupervised_vae import SemiSupervisedVAE

__all__ = ['ControlVariate', 'EstimatorLayer', 'SemiSupervisedVAE']

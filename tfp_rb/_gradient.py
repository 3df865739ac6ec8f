"""The custom gradients on which every estimator stands.

`tf.custom_gradient` is used in this module only. The functions take and return
Tensors and capture no variable.
"""

import tensorflow as tf

__all__ = [
  'likelihood_ratio',
  'objective_of',
  'value_with_gradient_of',
]


@tf.custom_gradient
def likelihood_ratio(log_prob):
  """Returns ones that differentiate, at any order, as `q(z) / stop(q(z))`.

  The gradient of the ratio is the ratio times the gradient of `log q(z)`.
  Because the gradient refers to the ratio again, second derivatives come out
  right too. Unlike `exp(x - stop(x))` this is 1, not NaN, where `log q(z)` is
  `-inf`.

  Args:
    log_prob: Floating-point `Tensor`, `log q(z)`.

  Returns:
    ratio: `Tensor` of ones with the shape and dtype of `log_prob`.
  """
  return tf.ones_like(log_prob), lambda dy: dy * likelihood_ratio(log_prob)


@tf.custom_gradient
def value_with_gradient_of(value, surrogate, auxiliary):
  """Returns `value`; differentiates as `surrogate`, and trains `auxiliary`.

  The three have the same shape. `auxiliary` is an objective of the estimator's
  own variables and is to be minimised whatever the caller does with the value,
  hence its cotangent is `|dy|`: the gradient of `loss`, of `-loss` and of
  `7 * loss` all point a baseline downhill.

  Args:
    value: `Tensor`, what is returned, unchanged even where it is infinite.
    surrogate: `Tensor` whose gradient stands for that of `value`.
    auxiliary: `Tensor`, objective of the estimator's own variables.

  Returns:
    value: `Tensor`, as given.
  """
  return tf.identity(value), lambda dy: (tf.zeros_like(dy), dy, tf.abs(dy))


def objective_of(objective, tape, variables):
  """Returns `objective`, which differentiates by `variables` and nothing else.

  For an objective that contains the user's model as well, which must not be
  trained by it.

  Args:
    objective: `Tensor`.
    tape: Persistent `tf.GradientTape` on which it was computed.
    variables: List of `tf.Variable`s.

  Returns:
    objective: `Tensor`, as given.
  """

  @tf.custom_gradient
  def of_variables(*values):
    del values  # they stand for the variables on the caller's tape

    def pullback(*cotangents):
      return tape.gradient(
        objective,
        variables,
        output_gradients=cotangents[0],
        unconnected_gradients='zero',
      )

    return tf.stop_gradient(objective), pullback

  return of_variables(*[tf.convert_to_tensor(v) for v in variables])

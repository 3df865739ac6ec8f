"""The custom gradients on which every estimator stands.

`tf.custom_gradient` is used in this module only. The functions take and return
Tensors and capture no variable.
"""

import contextlib

import tensorflow as tf

__all__ = [
  'call_one_by_one',
  'likelihood_ratio',
  'objective_of',
  'scale_gradient',
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


def call_one_by_one(f, x):
  """Returns `f(x[i])` for each `i`, stacked, and keeps nothing of the calls.

  Forward and backward are loops that hold the intermediate results of one call
  at a time, in eager, graph and XLA: the backward one calls `f` again. Unlike
  `tf.recompute_grad` this differentiates by Tensors that `f` captures as well,
  not only by `x` and variables, and at any order (a second derivative keeps
  everything). `f` is traced, once, to find what it captures.

  Args:
    f: Callable, `Tensor` to floating-point `Tensor`.
    x: `Tensor` with a static first dimension.

  Returns:
    values: `Tensor`, along the first dimension the results.
  """
  traced = tf.function(f, autograph=False).get_concrete_function(
    tf.TensorSpec(x.shape[1:], x.dtype)
  )
  result = traced.structured_outputs
  # A loop that nobody differentiates keeps nothing; a tape would, in eager.
  eagerly = tf.executing_eagerly()
  with tf.init_scope() if eagerly else contextlib.nullcontext():
    values = tf.map_fn(
      f,
      x,
      fn_output_signature=tf.TensorSpec(result.shape, result.dtype),
      parallel_iterations=1,
    )

  has_gradient = lambda t: t.dtype.is_floating or t.dtype.is_complex
  inputs = [x] if has_gradient(x) else []
  captured = [t for t in traced.captured_inputs if has_gradient(t)]
  captured += [v for v in traced.variables if has_gradient(v)]

  def pullback(cotangents):
    return _pull_back_one_by_one(f, x, inputs, captured, cotangents)

  @tf.custom_gradient
  def of_sources(*sources):
    del sources  # they stand for what is captured on the caller's tape
    return tf.stop_gradient(values), pullback

  if not inputs and not captured:
    return values
  return of_sources(*inputs, *[tf.convert_to_tensor(t) for t in captured])


def _pull_back_one_by_one(f, x, inputs, captured, cotangents):
  """Gradients of `call_one_by_one`, by a loop that calls `f` again.

  Args:
    f: Callable.
    x: `Tensor`, what `f` was called with, call after call.
    inputs: `[x]` if it is differentiable, else `[]`.
    captured: List of `Tensor`s and variables that `f` captures.
    cotangents: `Tensor`, those of the results.

  Returns:
    gradients: List of `Tensor`s, w.r.t. `inputs` and `captured`.
  """
  num_calls = x.shape[0]

  def step(i, slopes, totals):
    own = tf.identity(x[i])
    sources = [own] * len(inputs) + captured
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(sources)
      value = f(own)
    gradients = tape.gradient(
      value,
      sources,
      output_gradients=cotangents[i],
      unconnected_gradients='zero',
    )
    # Those of `tf.gather` are sparse.
    gradients = [tf.convert_to_tensor(g) for g in gradients]
    slopes = [s.write(i, g) for s, g in zip(slopes, gradients)]
    of_captured = gradients[len(inputs) :]
    return i + 1, slopes, [t + g for t, g in zip(totals, of_captured)]

  _, slopes, totals = tf.while_loop(
    lambda i, slopes, totals: i < num_calls,
    step,
    (
      tf.constant(0),
      [tf.TensorArray(t.dtype, num_calls) for t in inputs],
      [tf.zeros_like(t) for t in captured],
    ),
    parallel_iterations=1,
    maximum_iterations=num_calls,
  )
  slopes = [tf.ensure_shape(s.stack(), x.shape) for s in slopes]
  return slopes + totals


def scale_gradient(x, factor):
  """`x`, with its gradient multiplied; integers have none."""
  if not x.dtype.is_floating:
    return x

  @tf.custom_gradient
  def scaled(x):
    return tf.identity(x), lambda dy: factor * dy

  return scaled(x)

"""The order of the tests."""

# They take ten seconds and more, so they start first: one that starts last
# leaves the other processes without work.
LONG = (
  'test_short_form_runs',
  'test_two_devices_make_the_step_of_one_but_draw_apart',
  'test_the_bernoulli_example_writes_tables_and_figures',
  'test_the_variance_benchmark_writes_what_it_prints',
  'test_several_steps_in_one_call_are_the_same_steps',
  'test_our_fit_is_near_cavi_and_the_score_function_is_not',
)


def pytest_collection_modifyitems(items):
  items.sort(key=lambda item: getattr(item, 'originalname', None) not in LONG)

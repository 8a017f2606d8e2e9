"""One profile for every property test: a machine that is busy with other work must not fail them."""

from hypothesis import HealthCheck, settings

settings.register_profile("llmir", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("llmir")

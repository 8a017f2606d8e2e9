"""One profile for every property test: a machine that is busy with other work must not fail them."""

from hypothesis import HealthCheck, settings

BUSY = (HealthCheck.too_slow,)
settings.register_profile("llmir", deadline=None, suppress_health_check=BUSY, print_blob=True)
settings.load_profile("llmir")

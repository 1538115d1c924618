from hypothesis import HealthCheck, settings

ALWAYS = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("short", max_examples=60, derandomize=True, database=None, **ALWAYS)
settings.register_profile("long", max_examples=20_000, **ALWAYS)  # hours
settings.load_profile("short")

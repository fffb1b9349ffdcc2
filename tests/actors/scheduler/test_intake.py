from actors.scheduler.intake import AdmissionPace


def test_the_retry_hint_follows_the_pace_of_admissions() -> None:
    pace = AdmissionPace()
    assert pace.retry_after_ms(1) == 1000
    for second in range(200):
        pace.admitted(2, float(second))
    assert pace.retry_after_ms(1) == 500
    assert pace.retry_after_ms(1000) == 60_000

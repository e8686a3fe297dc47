"""Many runs: sweeps that go on after an interruption, their statistics, phase maps and advice."""

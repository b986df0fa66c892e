"""Published ways to choose clients that are biased or need more communication."""

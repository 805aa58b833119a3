"""The engines that evaluate the checks of an audit: this process, or Spark."""

"""The Prefect flows and the command line: they join the stages' doors."""

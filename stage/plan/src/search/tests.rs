mod placeholder_test {}

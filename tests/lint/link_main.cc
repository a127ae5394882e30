// Links one library whole, with what it declares as its dependencies and nothing else.
int main() { return 0; }

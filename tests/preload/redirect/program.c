/* What patched.c is about, in a program: a short jump goes from library to library, and not so far
 * as to a program. */
int patched(int argc, char **argv);

int main(int argc, char **argv)
{
    return patched(argc, argv);
}

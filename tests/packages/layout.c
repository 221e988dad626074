/* The structs of gpushim.h that Python has, too: one a line, its size and where each field lies. */
#include <stdio.h>

#include "shim/gpushim.h"

#define BEGIN(name)     printf("%s %zu", #name, sizeof(struct gpushim_##name))
#define AT(name, field) printf(" %s=%zu", #field, offsetof(struct gpushim_##name, field))

int main(void)
{
    BEGIN(memory);
    AT(memory, reserved), AT(memory, reserved_peak), AT(memory, hits), AT(memory, map_ns),
        AT(memory, took);
    AT(memory, slow), AT(memory, uuid);
    puts("");
    BEGIN(registration_counts);
    AT(registration_counts, hits), AT(registration_counts, failures),
        AT(registration_counts, bytes);
    puts("");
    BEGIN(publication);
    AT(publication, address), AT(publication, label), AT(publication, note),
        AT(publication, note_size);
    puts("");
    BEGIN(named);
    AT(named, handle), AT(named, offset), AT(named, bytes), AT(named, address), AT(named, age_ns),
        AT(named, pid);
    AT(named, uid), AT(named, kept), AT(named, uuid), AT(named, process), AT(named, label),
        AT(named, note_size);
    AT(named, note);
    puts("");
    BEGIN(external);
    AT(external, kind), AT(external, access), AT(external, device), AT(external, fd),
        AT(external, offset);
    AT(external, address), AT(external, bytes), AT(external, label), AT(external, deleter),
        AT(external, arg);
    puts("");
    BEGIN(asleep);
    AT(asleep, since_ns), AT(asleep, away), AT(asleep, copied), AT(asleep, shared),
        AT(asleep, refused);
    AT(asleep, own), AT(asleep, text);
    puts("");
    BEGIN(sleep_how);
    AT(sleep_how, timeout_ns), AT(sleep_how, directory), AT(sleep_how, discard);
    puts("");
    return 0;
}

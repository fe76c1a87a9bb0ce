/* A libnvidia-ml.so.1 for tests: answers what a text file says, anew at each call.
 *
 * $FAKE_NVML names the file. Its lines are "key value", the keys those of the captures with the card's index in
 * front ("0.power 61230", in NVML's own units). "!15" as a value is an error to return; a key that is missing is
 * not supported. "0.lost 15" fails every call for card 0; "init 9" fails the initialisation; "hang 1" keeps a call
 * from returning. Lines "event 0 79" are delivered once each, in order. Layouts are those of NVIDIA's nvml.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10, MAX_CARDS = 16 };

typedef struct { int index; } card_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { card_t *device; unsigned long long type, data; unsigned gi, ci; } event_t;
typedef struct {
  unsigned field, scope;
  long long timestamp, latency;
  unsigned type, result;
  union { double d; unsigned long long ull; } value;
} field_t;

static card_t cards[MAX_CARDS];
static int initialised, delivered;
static unsigned listening;

/* Copies the value of a key; 0 where there is none. */
static int find(const char *key, char *value, size_t size) {
  char line[512];
  size_t length = strlen(key);
  int found = 0;
  FILE *file = fopen(getenv("FAKE_NVML"), "r");
  if (!file) return 0;
  while (!found && fgets(line, sizeof line, file)) {
    if (strncmp(line, key, length) || line[length] != ' ') continue;
    line[strcspn(line, "\n")] = 0;
    snprintf(value, size, "%s", line + length + 1);
    found = 1;
  }
  fclose(file);
  return found;
}

static int text(const card_t *card, const char *key, char *out, unsigned size) {
  char name[64], value[256];
  if (!initialised) return UNINITIALIZED;
  if (card) {
    snprintf(name, sizeof name, "%d.lost", card->index);
    if (find(name, value, sizeof value)) return atoi(value);
    snprintf(name, sizeof name, "%d.%s", card->index, key);
  } else {
    snprintf(name, sizeof name, "%s", key);
  }
  if (!find(name, value, sizeof value)) return NOT_SUPPORTED;
  if (value[0] == '!') return atoi(value + 1);
  snprintf(out, size, "%s", value);
  return OK;
}

static int number(const card_t *card, const char *key, unsigned long long *out) {
  char value[256];
  int result = text(card, key, value, sizeof value);
  if (result == OK) *out = strtoull(value, NULL, 10);
  return result;
}

static int small(const card_t *card, const char *key, unsigned *out) {
  unsigned long long value;
  int result = number(card, key, &value);
  if (result == OK) *out = (unsigned)value;
  return result;
}

int nvmlInitWithFlags(unsigned flags) {
  char value[16];
  (void)flags;
  if (find("init", value, sizeof value)) return atoi(value);
  for (int i = 0; i < MAX_CARDS; i++) cards[i].index = i;
  initialised++;
  return OK;
}

int nvmlShutdown(void) {
  if (!initialised) return UNINITIALIZED;
  initialised--;
  return OK;
}

const char *nvmlErrorString(int result) { (void)result; return "error of the fake library"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { return text(NULL, "driver", out, size); }
int nvmlDeviceGetCount_v2(unsigned *count) { return small(NULL, "count", count); }
int nvmlDeviceGetUUID(card_t *card, char *out, unsigned size) { return text(card, "uuid", out, size); }
int nvmlDeviceGetName(card_t *card, char *out, unsigned size) { return text(card, "name", out, size); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, card_t **card) {
  unsigned count = 0, slot;
  char key[32];
  int result = small(NULL, "count", &count);
  if (result != OK) return result;
  if (index >= count) return INVALID;
  /* "slot.0 2": what the driver lists at index 0 is card 2, as when those before it have dropped out. */
  snprintf(key, sizeof key, "slot.%u", index);
  if (small(NULL, key, &slot) != OK) slot = index;
  *card = &cards[slot];
  return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, card_t **card) {
  char own[128];
  if (!initialised) return UNINITIALIZED;
  for (int i = 0; i < MAX_CARDS; i++) {
    int result = text(&cards[i], "uuid", own, sizeof own);
    if (result == OK && !strcmp(own, uuid)) { *card = &cards[i]; return OK; }
    result = text(&cards[i], "mig", own, sizeof own);
    if (result == OK && !strcmp(own, uuid)) { *card = &cards[i]; return OK; }
  }
  return NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(card_t *instance, card_t **card) {
  *card = instance;
  return initialised ? OK : UNINITIALIZED;
}

int nvmlDeviceGetUtilizationRates(card_t *card, utilization_t *out) {
  char value[16];
  struct timespec moment = {0, 5000000};
  while (find("hang", value, sizeof value)) nanosleep(&moment, NULL);
  int result = small(card, "utilization.gpu", &out->gpu);
  return result != OK ? result : small(card, "utilization.memory", &out->memory);
}

int nvmlDeviceGetMemoryInfo(card_t *card, memory_t *out) {
  int result = number(card, "memory.total", &out->total);
  if (result == OK) result = number(card, "memory.used", &out->used);
  if (result == OK) out->free = out->total - out->used;
  return result;
}

int nvmlDeviceGetTemperature(card_t *card, unsigned sensor, unsigned *out) {
  (void)sensor;
  return small(card, "temperature", out);
}

int nvmlDeviceGetPowerUsage(card_t *card, unsigned *out) { return small(card, "power", out); }
int nvmlDeviceGetEnforcedPowerLimit(card_t *card, unsigned *out) { return small(card, "power_limit", out); }

int nvmlDeviceGetClockInfo(card_t *card, unsigned type, unsigned *out) {
  return small(card, type == 1 ? "clock.sm" : "clock.memory", out);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(card_t *card, unsigned long long *out) {
  return number(card, "reasons", out);
}

#ifndef BEFORE_535
int nvmlDeviceGetCurrentClocksEventReasons(card_t *card, unsigned long long *out) {
  return number(card, "reasons", out);
}
#endif

int nvmlDeviceGetTotalEnergyConsumption(card_t *card, unsigned long long *out) {
  return number(card, "energy", out);
}

int nvmlDeviceGetTotalEccErrors(card_t *card, unsigned type, unsigned counter, unsigned long long *out) {
  if (counter != 0) return INVALID; /* only the volatile ones are asked for */
  return number(card, type == 0 ? "ecc.corrected" : "ecc.uncorrected", out);
}

int nvmlDeviceGetFieldValues(card_t *card, int count, field_t *fields) {
  char key[32];
  for (int i = 0; i < count; i++) {
    snprintf(key, sizeof key, "field.%u", fields[i].field);
    fields[i].type = 3; /* unsigned long long */
    fields[i].result = number(card, key, &fields[i].value.ull);
  }
  return initialised ? OK : UNINITIALIZED;
}

int nvmlEventSetCreate(void **set) {
  if (!initialised) return UNINITIALIZED;
  listening = 0;
  *set = &delivered;
  return OK;
}

int nvmlEventSetFree(void *set) { (void)set; listening = 0; return OK; }

int nvmlDeviceRegisterEvents(card_t *card, unsigned long long types, void *set) {
  unsigned refused;
  (void)set;
  if (types != 8) return INVALID; /* nvmlEventTypeXidCriticalError */
  if (small(card, "events", &refused) != OK) return NOT_SUPPORTED;
  listening |= 1u << card->index;
  return OK;
}

int nvmlEventSetWait_v2(void *set, event_t *out, unsigned milliseconds) {
  char line[256];
  int index, code, position = 0, result = TIMEOUT;
  (void)set;
  (void)milliseconds;
  if (!initialised) return UNINITIALIZED;
  FILE *file = fopen(getenv("FAKE_NVML"), "r");
  if (!file) return TIMEOUT;
  while (result == TIMEOUT && fgets(line, sizeof line, file)) {
    if (sscanf(line, "event %d %d", &index, &code) != 2 || position++ < delivered) continue;
    delivered++;
    if (!(listening >> index & 1)) continue;
    *out = (event_t){&cards[index], 8, (unsigned long long)code, 0xffffffff, 0xffffffff};
    result = OK;
  }
  fclose(file);
  return result;
}
